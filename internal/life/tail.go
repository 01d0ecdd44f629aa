package life

import (
	"strings"
	"sync"
	"unicode"
)

// causeMax bounds what of a process's words an error tells, in bytes.
const causeMax = 1500

// A Tail keeps the end of what is written to it. Its methods are safe for
// concurrent use.
type Tail struct {
	limit int
	mu    sync.Mutex
	buf   []byte
}

// NewTail returns a Tail of at most limit bytes.
func NewTail(limit int) *Tail { return &Tail{limit: limit} }

// Write implements io.Writer and never fails.
func (t *Tail) Write(p []byte) (int, error) {
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

// Bytes returns a copy of what is kept.
func (t *Tail) Bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf[max(0, len(t.buf)-t.limit):]...)
}

func (t *Tail) String() string { return string(t.Bytes()) }

// OneLine makes the end of a text fit for an error: the guest may have written it.
func OneLine(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(s, "?"))
	if len(s) > causeMax {
		s = "..." + strings.ToValidUTF8(s[len(s)-causeMax:], "")
	}
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }), "; ")
}

// LastWords leaves out the registers and the calls that a Linux kernel that panics
// prints after it has said why.
func LastWords(console string) string {
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
