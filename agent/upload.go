package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/bouvet-run/bouvet/wire"
)

func prepareUpload(_ context.Context, s *Server, params json.RawMessage) (stream, error) {
	var p wire.UploadParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	o, err := target(p.Path, p.Mode, p.User)
	if err != nil {
		return nil, err
	}
	if _, err := makeDirs(filepath.Dir(p.Path), o); err != nil {
		return nil, failed("create directories for", p.Path, err)
	}
	file, err := newReplacement(p.Path)
	if err != nil {
		return nil, failed("write", p.Path, err)
	}
	return func(ctx context.Context, conn net.Conn, r io.Reader) {
		defer file.discard()
		size, err := receive(file.file, r, func() { s.whenThawed(ctx) })
		if errors.Is(err, errHostGone) {
			s.log.Debug("upload ended", slog.Any("error", err))
			return
		}
		s.whenThawed(ctx)
		if err == nil {
			err = file.commit(p.Mode, o)
		}
		if err != nil {
			_ = writeEnd(conn, wire.EndFrame{Error: failed("write", p.Path, err).Error()})
			return
		}
		_ = writeEnd(conn, wire.EndFrame{Size: size})
	}, nil
}

// errHostGone ends what nobody waits for any more.
var errHostGone = errors.New("the host is gone")

// receive writes the data frames of r to w, each when it may, until the frame that
// ends them.
func receive(w io.Writer, r io.Reader, may func()) (size uint64, err error) {
	frames := wire.NewFrameReader(r)
	for {
		kind, payload, err := frames.ReadFrame()
		switch {
		case errors.Is(err, wire.ErrBadFrame):
			return size, err
		case err != nil:
			return size, fmt.Errorf("%w: %w", errHostGone, err)
		}
		switch kind {
		case wire.FrameData:
			may()
			n, err := w.Write(payload)
			size += uint64(n) //nolint:gosec // not negative.
			if err != nil {
				return size, err
			}
		case wire.FrameEnd:
			return size, endOf(payload)
		default:
			return size, unexpectedKind(kind)
		}
	}
}

func unexpectedKind(kind byte) error {
	return fmt.Errorf("%w: kind %d has no place here", wire.ErrBadFrame, kind)
}

// endOf reads the host's end frame; an error in it means that the host could not
// send all it wanted to.
func endOf(payload []byte) error {
	var end wire.EndFrame
	if err := wire.Decode(payload, &end); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrBadFrame, err)
	}
	if end.Error != "" {
		return fmt.Errorf("the host gave up: %s", shorten(end.Error, maxShownPath))
	}
	return nil
}
