package qemu

import (
	"strings"
	"sync"
	"unicode"
)

const (
	// consoleTail and stderrTail are how much of the guest's console and of QEMU's
	// messages is kept, in bytes.
	consoleTail = 64 << 10
	stderrTail  = 8 << 10
	// causeMax bounds what of them an error tells.
	causeMax = 1000
)

// A tail keeps the end of what is written to it.
type tail struct {
	limit int
	mu    sync.Mutex
	buf   []byte
}

func newTail(limit int) *tail { return &tail{limit: limit} }

// Write implements io.Writer and never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	p = p[max(0, n-t.limit):]
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*t.limit { // seldom, for whoever writes byte by byte
		t.buf = append(t.buf[:0], t.buf[len(t.buf)-t.limit:]...)
	}
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf[max(0, len(t.buf)-t.limit):])
}

// oneLine makes the end of a text fit for an error: the guest may have written it.
func oneLine(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s, "?"))
	if len(s) > causeMax {
		s = "..." + strings.ToValidUTF8(s[len(s)-causeMax:], "")
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }), "; ")
}

// lastWords leaves out the registers and the calls that a kernel that panics prints
// after it has said why.
func lastWords(console string) string {
	at := strings.LastIndex(console, "Kernel panic")
	if at < 0 {
		return console
	}
	end := strings.IndexByte(console[at:], '\n')
	if end < 0 {
		return console
	}
	return console[:at+end]
}
