package kernel

import (
	"bytes"
	"compress/bzip2"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"
)

// The first bytes of what a kernel's payload, or a module, may be compressed with.
var (
	gzipMagic  = []byte{0x1f, 0x8b}
	zstdMagic  = []byte{0x28, 0xb5, 0x2f, 0xfd}
	xzMagic    = []byte{0xfd, '7', 'z', 'X', 'Z', 0}
	bzip2Magic = []byte("BZh")
)

// zstdWindow bounds what the decoder may need for a window, in bytes: the kernel's
// build asks for 128 MiB.
const zstdWindow = 128 << 20

var errTooBig = errors.New("it is too big when uncompressed")

// unpack uncompresses the payload of a bzImage, up to limit bytes. All but gzip's
// ends with the image's length, four bytes that are not the format's own.
func unpack(ctx context.Context, payload []byte, limit int64) ([]byte, error) {
	if len(payload) >= 4 && binary.LittleEndian.Uint32(payload) == lz4Magic {
		return lz4Legacy(payload, int(limit))
	}
	if bytes.HasPrefix(payload, gzipMagic) {
		return gunzip(payload, limit)
	}
	return expand(ctx, payload[:max(0, len(payload)-4)], limit)
}

// gunzip uncompresses the gzip member that data begins with.
func gunzip(data []byte, limit int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	return readLimited(z, limit)
}

// expand uncompresses data, all of it one stream, up to limit bytes.
func expand(ctx context.Context, data []byte, limit int64) ([]byte, error) {
	switch {
	case bytes.HasPrefix(data, gzipMagic):
		return gunzip(data, limit)
	case bytes.HasPrefix(data, zstdMagic):
		z, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		return readLimited(z, limit)
	case bytes.HasPrefix(data, bzip2Magic):
		return readLimited(bzip2.NewReader(bytes.NewReader(data)), limit)
	case bytes.HasPrefix(data, xzMagic):
		return xz(ctx, data, limit)
	}
	return nil, fmt.Errorf("its compression (% x) is none of LZ4, gzip, zstd, bzip2 and xz", data[:min(4, len(data))])
}

// xz has the tool of that name uncompress data.
func xz(ctx context.Context, data []byte, limit int64) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd, stderr := command(ctx, "/", "xz", "--decompress", "--stdout", "--memlimit=512MiB")
	cmd.Stdin = bytes.NewReader(data)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%w: install it with apt-get install xz-utils", err)
	}
	out, readErr := readLimited(pipe, limit)
	if readErr != nil {
		cancel()
		_ = cmd.Wait()
		return nil, readErr
	}
	if err := cmd.Wait(); err != nil {
		return nil, toolError(ctx, "xz", err, stderr)
	}
	return out, nil
}

// readLimited reads r to its end, which has to come within limit bytes.
func readLimited(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1)) //nolint:forbidigo // limited
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, errTooBig
	}
	return data, nil
}
