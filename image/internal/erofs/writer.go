package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
)

// File is what an image is written to; *os.File is one. It must be empty.
type File interface {
	io.WriterAt
	io.ReaderAt
	Truncate(size int64) error
}

// A Writer makes one image. File contents are appended first, as they arrive;
// the tree that refers to them is written by Finish. Contents that the tree no
// longer refers to by then take no space in the image.
type Writer struct {
	out    File
	buf    []byte
	offset int64 // where in out the buffer begins
	failed error
}

const (
	bufferSize = 1 << 20
	holeSize   = 64 << 10
)

var zeros [holeSize]byte

// NewWriter returns a Writer that writes to out, from its beginning.
func NewWriter(out File) *Writer {
	return &Writer{out: out, buf: make([]byte, 0, bufferSize), offset: BlockSize}
}

// Append copies exactly size bytes of a regular file's content from r and
// returns the block at which they begin, for Inode.Block. It fails with
// io.ErrUnexpectedEOF if r ends early. After any error the Writer is of no use.
func (w *Writer) Append(ctx context.Context, r io.Reader, size int64) (uint32, error) {
	if w.failed != nil {
		return 0, w.failed
	}
	block := (w.offset + int64(len(w.buf))) / BlockSize
	if size == 0 {
		return 0, nil
	}
	if size < 0 || block+size/BlockSize+1 > math.MaxUint32 {
		return 0, errors.New("image is too large for the format")
	}
	for left := size; left > 0; {
		if len(w.buf) == cap(w.buf) {
			if err := w.flush(); err != nil {
				return 0, err
			}
		}
		if err := ctx.Err(); err != nil {
			return 0, w.fail(context.Cause(ctx))
		}
		n := min(left, int64(cap(w.buf)-len(w.buf)))
		part := w.buf[len(w.buf) : len(w.buf)+int(n)]
		if _, err := io.ReadFull(r, part); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return 0, w.fail(err)
		}
		w.buf = w.buf[:len(w.buf)+int(n)]
		left -= n
	}
	w.pad()
	return uint32(block), nil //nolint:gosec // bounded above
}

func (w *Writer) fail(err error) error {
	w.failed = err
	return err
}

// pad fills the last block with zeros. The buffer's capacity is a multiple of
// the block size, so this never needs a flush.
func (w *Writer) pad() {
	if rest := len(w.buf) % BlockSize; rest != 0 {
		w.buf = append(w.buf, zeros[:BlockSize-rest]...)
	}
}

// flush writes the buffer out, leaving holes where a sparse file had them.
func (w *Writer) flush() error {
	for off := 0; off < len(w.buf); {
		end := off
		for end < len(w.buf) && !isZero(w.buf[end:min(end+holeSize, len(w.buf))]) {
			end = min(end+holeSize, len(w.buf))
		}
		if end > off {
			if _, err := w.out.WriteAt(w.buf[off:end], w.offset+int64(off)); err != nil {
				return w.fail(fmt.Errorf("cannot write image: %w", err))
			}
		}
		off = min(end+holeSize, len(w.buf))
	}
	w.offset += int64(len(w.buf))
	w.buf = w.buf[:0]
	return nil
}

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// Stats says what an image holds.
type Stats struct {
	// Inodes counts inodes; Names counts directory entries without the dots.
	Inodes, Names int64
	// Size is the length of the image in bytes.
	Size int64
}

// Finish writes the tree below root, and with it completes the image.
func (w *Writer) Finish(ctx context.Context, root *Inode) (Stats, error) {
	if w.failed != nil {
		return Stats{}, w.failed
	}
	if !root.IsDir() {
		return Stats{}, errors.New("cannot write image: its root is not a directory")
	}
	if err := w.flush(); err != nil {
		return Stats{}, err
	}
	p, err := newPlan(root)
	if err != nil {
		return Stats{}, w.fail(err)
	}
	end, err := w.compact(ctx, p.files)
	if err != nil {
		return Stats{}, w.fail(err)
	}
	if err := w.writeTree(ctx, p, end); err != nil {
		return Stats{}, w.fail(err)
	}
	w.failed = errors.New("image is finished")
	return p.stats, nil
}
