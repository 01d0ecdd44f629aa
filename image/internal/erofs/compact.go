package erofs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
)

// compact moves the contents that are still referred to towards the beginning,
// in the order they arrived, over those that are not, and returns where they
// end. So what a later layer replaced leaves no trace in the image.
func (w *Writer) compact(ctx context.Context, files []*Inode) (int64, error) {
	slices.SortFunc(files, func(a, b *Inode) int { return int(int64(a.Block) - int64(b.Block)) })
	end := int64(BlockSize)
	for _, f := range files {
		from, length := int64(f.Block)*BlockSize, roundUp(f.Size)
		if from != end {
			if err := w.move(ctx, from, end, length); err != nil {
				return 0, err
			}
			f.Block = uint32(end / BlockSize)
		}
		end += length
	}
	if end != w.offset {
		if err := w.out.Truncate(end); err != nil {
			return 0, fmt.Errorf("cannot write image: %w", err)
		}
	}
	return end, nil
}

// move copies length bytes downwards; the ranges may overlap.
func (w *Writer) move(ctx context.Context, from, to, length int64) error {
	buf := w.buf[:cap(w.buf)]
	for length > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		part := buf[:min(length, int64(len(buf)))]
		// A hole at the end was never written: it reads short, and is zeros.
		n, err := w.out.ReadAt(part, from)
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("cannot read image back: %w", err)
		}
		clear(part[n:])
		if _, err := w.out.WriteAt(part, to); err != nil {
			return fmt.Errorf("cannot write image: %w", err)
		}
		step := int64(len(part))
		from, to, length = from+step, to+step, length-step
	}
	return nil
}

func roundUp(n int64) int64 { return (n + BlockSize - 1) &^ (BlockSize - 1) }
