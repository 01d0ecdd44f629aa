package gvisor

import (
	"encoding/json"
	"errors"
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

// messages are the texts of the JSON records in the log, on one line.
func (t *tail) messages() string {
	var all []string
	// Limited by the tail; a record cut in front ends it.
	dec := json.NewDecoder(strings.NewReader(t.String())) //nolint:forbidigo // limited, and no peer's: runsc's
	for {
		var record struct {
			Message string `json:"msg"`
		}
		if err := dec.Decode(&record); err != nil {
			break
		}
		all = append(all, record.Message)
	}
	if len(all) == 0 {
		return oneLine(t.String())
	}
	return oneLine(strings.Join(all, "\n"))
}

// readHead reads the first bytes of a file that others may still be writing.
func readHead(f *os.File, limit int) string {
	b := make([]byte, limit)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	return strings.TrimRight(string(b[:n]), "\x00")
}
