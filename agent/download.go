package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net"
	"os"

	"github.com/bouvet-run/bouvet/wire"
)

// streamChunk is how many bytes of a bulk stream go into one frame: with what goes before
// it on its way a little less than 256 KiB, so that no write of 32 KiB, which is what a
// virtio-serial port takes at once, is for a few bytes.
const streamChunk = 8*wire.ChunkSize - 16 - wire.FrameHeaderLen

func prepareDownload(_ context.Context, _ *Server, params json.RawMessage) (stream, error) {
	var p wire.DownloadParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if err := checkPath("path", p.Path); err != nil {
		return nil, err
	}
	if p.Offset > math.MaxInt64 || p.Length > math.MaxInt64 {
		return nil, invalid("offset and length are at most 2^63-1")
	}
	f, _, err := openRegular(p.Path)
	if err != nil {
		return nil, failed("read", p.Path, err)
	}
	if _, err := f.Seek(int64(p.Offset), io.SeekStart); err != nil {
		return nil, errors.Join(failed("read", p.Path, err), f.Close())
	}
	length := int64(math.MaxInt64)
	if p.Length > 0 {
		length = int64(p.Length)
	}
	return func(_ context.Context, conn net.Conn, _ io.Reader) {
		defer func() { _ = f.Close() }()
		sendFile(conn, f, p.Path, length)
	}, nil
}

// sendFile sends at most length bytes of f and how that ended. The end of the
// connection shows when it is written to.
func sendFile(conn net.Conn, f *os.File, path string, length int64) {
	var readErr error
	buf := make([]byte, wire.FrameHeaderLen+streamChunk)
	for length > 0 && readErr == nil {
		var n int
		n, readErr = f.Read(buf[wire.FrameHeaderLen:][:min(length, streamChunk)])
		if n == 0 {
			continue
		}
		length -= int64(n)
		wire.PutFrameHeader(buf, wire.FrameData, n)
		if _, err := conn.Write(buf[:wire.FrameHeaderLen+n]); err != nil {
			return
		}
	}
	if readErr != nil && !errors.Is(readErr, io.EOF) {
		_ = writeEnd(conn, wire.EndFrame{Error: failed("read", path, readErr).Error()})
		return
	}
	_ = writeEnd(conn, wire.EndFrame{})
}

// writeEnd writes the frame that ends our direction of a stream.
func writeEnd(w io.Writer, end wire.EndFrame) error { return writeJSONFrame(w, wire.FrameEnd, end) }

func writeJSONFrame(w io.Writer, kind byte, v any) error {
	payload, err := wire.AppendLine(nil, v)
	if err != nil {
		return err
	}
	_, err = w.Write(wire.AppendFrame(nil, kind, payload[:len(payload)-1]))
	return err
}
