package gvisor

import (
	"io"
	"os"
	"strings"
	"sync"
)

// tailSize is how much of a log is kept, in bytes.
const tailSize = 8 << 10

// A tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

// Write implements io.Writer and never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if n > tailSize {
		p = p[n-tailSize:]
	}
	t.buf = append(t.buf, p...)
	if over := len(t.buf) - tailSize; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}

// readHead reads the first bytes of a file that others may still be writing.
func readHead(f *os.File, limit int) string {
	b := make([]byte, limit)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF { //nolint:errorlint // io.ReaderAt returns it bare
		return ""
	}
	return strings.TrimRight(string(b[:n]), "\x00")
}
