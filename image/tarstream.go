package image

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
)

const (
	tarBlock = 512
	// maxTrailer bounds what may follow an archive's end marker: padding to the
	// record size of whoever wrote it.
	maxTrailer = 64 << 20
)

// A tarStream reads one archive, bounded, and notices when it has been cut off,
// which archive/tar does not if the cut falls between two entries.
type tarStream struct {
	*tar.Reader
	counter *countingReader
}

func newTarStream(ctx context.Context, r io.Reader, l Limits) *tarStream {
	// Headers, extended ones included, are small beside what they describe.
	c := &countingReader{ctx: ctx, r: r, limit: l.TotalBytes + 4*maxPath*l.Entries}
	return &tarStream{Reader: tar.NewReader(c), counter: c}
}

// next returns the next entry, or io.EOF after a complete archive. The content
// of the one before it must have been read.
func (s *tarStream) next() (*tar.Header, error) {
	before := (s.counter.n + tarBlock - 1) / tarBlock * tarBlock
	hdr, err := s.Next()
	switch {
	case err == nil:
		return hdr, nil
	case s.counter.err != nil:
		return nil, s.counter.err
	case !errors.Is(err, io.EOF):
		return nil, fmt.Errorf("%w: damaged tar archive: %w", ErrRefused, err)
	case s.counter.n < before+tarBlock:
		return nil, fmt.Errorf("%w: tar archive is cut off: its end marker is missing", ErrRefused)
	}
	// Reading on checks the sum at the end of a compressed stream, and lets a
	// program that writes into a pipe finish.
	if _, err := io.CopyN(io.Discard, s.counter, maxTrailer); err == nil {
		return nil, fmt.Errorf("%w: more than %d bytes follow the end of the tar archive", ErrRefused, maxTrailer)
	} else if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read tar archive: %w", err)
	}
	return nil, io.EOF
}

// countingReader counts what is read, ends with its context and has a limit.
type countingReader struct {
	ctx   context.Context //nolint:containedctx // bounds this stream alone
	r     io.Reader
	n     int64
	limit int64
	err   error // what ended it, other than io.EOF
}

func (c *countingReader) Read(p []byte) (int, error) {
	switch {
	case c.err != nil:
		return 0, c.err
	case c.ctx.Err() != nil:
		c.err = context.Cause(c.ctx)
		return 0, c.err
	case c.n > c.limit:
		c.err = fmt.Errorf("%w: tar archive is larger than the limits allow", ErrRefused)
		return 0, c.err
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = fmt.Errorf("cannot read tar archive: %w", err)
		return n, c.err
	}
	return n, err
}
