package image

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// Import makes an image of the tar archive or the directory at path, and gives
// it a name. An archive may be plain or compressed with gzip or zstd.
func (s *Store) Import(ctx context.Context, name, path string, opts ImportOptions) (Info, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Info{}, fmt.Errorf("cannot import image %s: %w", name, err)
	}
	if opts.Source == "" {
		opts.Source = path
	}
	switch {
	case info.IsDir():
		return s.build(ctx, name, opts, func(out Output) (Stats, error) {
			return WriteDir(ctx, path, out, opts.Limits, opts.Progress)
		})
	case info.Mode().IsRegular():
		return s.ImportLayers(ctx, name, []Layer{TarFile(path)}, opts)
	}
	return Info{}, fmt.Errorf("cannot import image %s: %w: %s is neither a file nor a directory", name, ErrRefused, path)
}

// ImportTar makes an image of the tar archive that r holds, plain or compressed
// with gzip or zstd, and gives it a name.
func (s *Store) ImportTar(ctx context.Context, name string, r io.Reader, opts ImportOptions) (Info, error) {
	layer := func(context.Context) (io.ReadCloser, error) { return decompress(io.NopCloser(r)) }
	return s.ImportLayers(ctx, name, []Layer{layer}, opts)
}

// TarFile is the layer that the tar archive at path holds, plain or compressed
// with gzip or zstd.
func TarFile(path string) Layer {
	return func(context.Context) (io.ReadCloser, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		return decompress(f)
	}
}

// maxWindow bounds the memory that a zstd stream can ask for; it is what
// "zstd --long" needs.
const maxWindow = 128 << 20

// decompress returns the content of rc, whose compression its first bytes tell.
// It closes rc with what it returns, or when it fails.
func decompress(rc io.ReadCloser) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(rc, 1<<18)
	head, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, rc.Close())
	}
	has := func(magic string) bool { return bytes.HasPrefix(head, []byte(magic)) }
	switch {
	case has("\x1f\x8b"):
		zr, err := gzip.NewReader(br)
		if err != nil {
			return nil, errors.Join(err, rc.Close())
		}
		return &stream{zr, func() error { return errors.Join(zr.Close(), rc.Close()) }}, nil
	case has("\x28\xb5\x2f\xfd"):
		zr, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, errors.Join(err, rc.Close())
		}
		return &stream{zr, func() error { zr.Close(); return rc.Close() }}, nil
	case has("\xfd7zXZ\x00"), has("BZh"):
		return nil, errors.Join(fmt.Errorf("%w: archives compressed with xz or bzip2 are not read; decompress it first, or use gzip or zstd", ErrRefused), rc.Close())
	}
	return &stream{br, rc.Close}, nil
}

// stream is a reader with a close of its own.
type stream struct {
	io.Reader
	close func() error
}

func (s *stream) Close() error { return s.close() }
