package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// copyChunk is how much is copied between two looks at the context, in bytes.
const copyChunk = 64 << 20

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
		err = extents(src, info.Size(), func(from, to int64) error { return copyRange(ctx, dst, src, from, to) })
	}
	if err != nil {
		return fmt.Errorf("cannot copy %s: %w", filepath.Base(src.Name()), err)
	}
	return nil
}

func copyRange(ctx context.Context, dst, src *os.File, from, to int64) error {
	for from < to {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		in, out := from, from
		n, err := unix.CopyFileRange(int(src.Fd()), &in, int(dst.Fd()), &out, int(min(to-from, copyChunk)), 0)
		if errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
			n, err = copyPlain(dst, src, from, min(to-from, 1<<20))
		}
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

// copyPlain copies between file systems, and from files in memory.
func copyPlain(dst, src *os.File, at, n int64) (int, error) {
	buf := make([]byte, n)
	got, err := src.ReadAt(buf, at)
	if got == 0 {
		return 0, err
	}
	return dst.WriteAt(buf[:got], at)
}
