package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

func callMove(ctx context.Context, _ *Server, params json.RawMessage) (any, error) {
	var p wire.MoveParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if err := errors.Join(checkPath("from", p.From)); err != nil {
		return nil, err
	}
	if err := checkPath("to", p.To); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(p.From); err != nil {
		return nil, failed("move", p.From, err)
	}
	if _, err := makeDirs(filepath.Dir(p.To), nil); err != nil {
		return nil, failed("create directories for", p.To, err)
	}
	err := os.Rename(p.From, p.To)
	if errors.Is(err, unix.EXDEV) {
		err = moveAcross(ctx, p.From, p.To)
	}
	if err != nil {
		return nil, failed("move", p.From, err)
	}
	return wire.Empty{}, nil
}

var errAcross = errors.New("only regular files can be moved to another file system; copy it with a command")

// moveAcross moves a regular file to another file system: a copy takes the
// target's place whole or not at all, and the original goes last.
func moveAcross(ctx context.Context, from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errAcross
	}
	source, info, err := openRegular(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	dest, err := newReplacement(to)
	if err != nil {
		return err
	}
	defer dest.discard()
	if _, err := io.Copy(dest.file, cancelReader{ctx, source}); err != nil {
		return err
	}
	dest.like(info)
	if err := dest.commit(nil, nil); err != nil {
		return err
	}
	return os.Remove(from)
}

// cancelReader ends a copy with its context.
type cancelReader struct {
	ctx context.Context //nolint:containedctx // it is the reader's whole purpose.
	r   io.Reader
}

func (c cancelReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
