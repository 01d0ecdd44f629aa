package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// ErrLineTooLong means that a peer sent a line beyond the reader's bound. The
// stream cannot be resynchronised and is to be closed.
var ErrLineTooLong = errors.New("line too long")

// LargeLine is the length in bytes from which a line counts as large: beyond it
// a LineReader asks its Large limiter for leave.
const LargeLine = 1 << 20

// firstBuffer is a LineReader's buffer for ordinary lines.
const firstBuffer = 4 << 10

// Limiter bounds how many large lines are held at once, so that many peers
// together cannot take more memory than one may. Acquire may block, for a
// bounded time, and fail.
type Limiter interface {
	Acquire() error
	Release()
}

// LineReader reads lines of bounded length from a peer, and hands over to raw
// reading without losing a byte (checklist A8). It is not safe for concurrent use.
type LineReader struct {
	r          io.Reader
	max        int
	buf        []byte
	start, end int // unread bytes are buf[start:end]
	large      Limiter
	holding    bool
	err        error
}

// NewLineReader returns a reader of lines of at most maxLine bytes, the newline
// not counted. large may be nil.
func NewLineReader(r io.Reader, maxLine int, large Limiter) *LineReader {
	return &LineReader{r: r, max: maxLine, large: large}
}

// ReadLine returns the next line without its newline; it is valid until the next
// call. At the end of the stream it returns io.EOF, or io.ErrUnexpectedEOF when
// a line was begun. A line beyond the bound is ErrLineTooLong. Every error is for
// good, a missed deadline included: what was begun of a line is dropped.
func (l *LineReader) ReadLine() ([]byte, error) {
	l.release()
	if l.err != nil {
		return nil, l.err
	}
	scanned := 0
	for {
		if i := bytes.IndexByte(l.buf[l.start+scanned:l.end], '\n'); i >= 0 {
			line := l.buf[l.start : l.start+scanned+i]
			if len(line) > l.max {
				return nil, l.fail(l.tooLong())
			}
			l.start += scanned + i + 1
			return line, nil
		}
		scanned = l.end - l.start
		if scanned > l.max {
			return nil, l.fail(l.tooLong())
		}
		if err := l.fill(); err != nil {
			if errors.Is(err, io.EOF) && scanned > 0 {
				err = io.ErrUnexpectedEOF
			}
			return nil, l.fail(err)
		}
	}
}

// SetMax changes the bound for the lines to come.
func (l *LineReader) SetMax(maxLine int) { l.max = maxLine }

func (l *LineReader) tooLong() error {
	return fmt.Errorf("%w: more than %d bytes", ErrLineTooLong, l.max)
}

// fail remembers err; a reader that has failed reads nothing more. What it holds
// of a line that will never be whole is let go at once, not when its owner
// remembers to close it.
func (l *LineReader) fail(err error) error {
	l.err = err
	l.drop()
	return err
}

func (l *LineReader) drop() {
	l.buf, l.start, l.end = nil, 0, 0
	if l.holding {
		l.holding = false
		l.large.Release()
	}
}

// release ends the use of the last line: a large buffer goes back.
func (l *LineReader) release() {
	rest := l.buf[l.start:l.end]
	if len(l.buf) <= LargeLine || len(rest) >= LargeLine { // the latter: the next line is large, too
		return
	}
	buf := make([]byte, max(len(rest), firstBuffer))
	n := copy(buf, rest)
	l.drop()
	l.buf, l.end = buf, n
}

// fill reads once more into the buffer, growing it as needed but never much past
// the bound.
func (l *LineReader) fill() error {
	if l.start > 0 && l.end == len(l.buf) {
		copy(l.buf, l.buf[l.start:l.end])
		l.start, l.end = 0, l.end-l.start
	}
	if l.end == len(l.buf) {
		size := min(max(2*len(l.buf), firstBuffer), max(l.max+2, firstBuffer))
		if size > LargeLine && l.large != nil && !l.holding {
			if err := l.large.Acquire(); err != nil {
				return err
			}
			l.holding = true
		}
		grown := make([]byte, size)
		copy(grown, l.buf[:l.end])
		l.buf = grown
	}
	for range 100 {
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// Read implements io.Reader for what follows the lines: first what is buffered,
// then the stream itself.
func (l *LineReader) Read(p []byte) (int, error) {
	if l.start < l.end {
		n := copy(p, l.buf[l.start:l.end])
		l.start += n
		if l.start == l.end && len(l.buf) > LargeLine {
			l.drop()
		}
		return n, nil
	}
	if l.err != nil {
		return 0, l.err
	}
	return l.r.Read(p)
}

// Buffered returns how many bytes have been read from the peer and not yet
// returned.
func (l *LineReader) Buffered() int { return l.end - l.start }

// Close lets the buffers go and gives back what the reader holds of its Limiter.
// It does not close the stream. Bytes still buffered are lost.
func (l *LineReader) Close() {
	if l.err == nil {
		l.err = io.ErrClosedPipe
	}
	l.drop()
}
