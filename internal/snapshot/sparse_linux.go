package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// copyChunk is how much the kernel copies between two looks at the context, and
	// plainChunk how much we do, in bytes.
	copyChunk  = 64 << 20
	plainChunk = 1 << 20
)

// CopySparse makes dst, which is empty, a copy of src that shares its blocks where
// the file system can (a reflink), and has its holes where not.
func CopySparse(ctx context.Context, dst, src *os.File) error {
	if unix.IoctlFileClone(int(dst.Fd()), int(src.Fd())) == nil {
		return nil
	}
	info, err := src.Stat()
	if err == nil {
		err = dst.Truncate(info.Size())
	}
	if err == nil {
		c := copier{dst: dst, src: src}
		err = extents(src, info.Size(), func(from, to int64) error { return c.copyRange(ctx, from, to) })
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", filepath.Base(src.Name()), err)
	}
	return nil
}

type copier struct {
	dst, src *os.File
	buf      []byte // where the kernel does not copy
}

func (c *copier) copyRange(ctx context.Context, from, to int64) error {
	for from < to {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n, err := c.copySome(from, to-from)
		if err != nil {
			return err
		}
		if n == 0 {
			return errors.New("file became shorter")
		}
		from += int64(n)
	}
	return nil
}

// copySome copies at most n bytes and returns how many.
func (c *copier) copySome(from, n int64) (int, error) {
	if c.buf == nil {
		in, out := from, from
		got, err := unix.CopyFileRange(int(c.src.Fd()), &in, int(c.dst.Fd()), &out, int(min(n, copyChunk)), 0)
		switch {
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			c.buf = make([]byte, plainChunk)
		default:
			return got, err
		}
	}
	return c.copyPlain(from, n)
}

// copyPlain copies between file systems, and from files in memory. It leaves out
// blocks of zeroes: memory that was used once is full of them.
func (c *copier) copyPlain(at, n int64) (int, error) {
	got, err := c.src.ReadAt(c.buf[:min(n, plainChunk)], at)
	if got == 0 {
		return 0, err
	}
	data := c.buf[:got]
	for from := 0; from < got; {
		to := from
		for to < got && !zero(data[to:min(to+block, got)]) {
			to += block
		}
		if to = min(to, got); to > from {
			if _, err := c.dst.WriteAt(data[from:to], at+int64(from)); err != nil {
				return 0, err
			}
			from = to
			continue
		}
		from += block
	}
	return got, nil
}
