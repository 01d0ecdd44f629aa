package cli

import (
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// A terminal is the user's, lent to a command in a sandbox.
type terminal struct {
	in, out *os.File

	mu    sync.Mutex
	saved *term.State // guarded by mu; nil unless raw
	lent  bool        // guarded by mu; whether a command has had it
}

// openTerminal returns nil unless both in and out are terminals.
func openTerminal(in io.Reader, out io.Writer) *terminal {
	i, ok := asFile(in)
	if !ok || !isTerminal(i) {
		return nil
	}
	o, ok := asFile(out)
	if !ok || !isTerminal(o) {
		return nil
	}
	return &terminal{in: i, out: o}
}

func isTerminal(v any) bool {
	f, ok := asFile(v)
	return ok && term.IsTerminal(int(f.Fd()))
}

// raw hands every key to the command. It may be called again when somebody else
// has changed the terminal, after a stop for example.
func (t *terminal) raw() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err == nil && t.saved == nil {
		t.saved, t.lent = state, true
	}
	return err
}

// reraw renews raw mode if it is on.
func (t *terminal) reraw() {
	t.mu.Lock()
	on := t.saved != nil
	t.mu.Unlock()
	if on {
		_ = t.raw()
	}
}

// forget turns off what a program that could not end in order may have left on,
// as far as that shows nothing by itself: attributes, a hidden cursor, mouse
// reports, bracketed paste.
const forget = "\x1b[0m\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l"

// restore gives the terminal back as it was. It may be called more than once.
func (t *terminal) restore(inOrder bool) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.saved == nil {
		return
	}
	if !inOrder {
		writeText(t.out, forget)
	}
	_ = term.Restore(int(t.in.Fd()), t.saved)
	t.saved = nil
}

// dropInput throws away what nobody has read, if a command has had the terminal. A
// program can make a terminal answer, some of them with words of its choice, and be
// gone when the answer comes: the user's shell must not take it for a command (T23).
func (t *terminal) dropInput() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lent {
		_ = unix.IoctlSetInt(int(t.in.Fd()), unix.TCFLSH, unix.TCIFLUSH)
	}
}

// size returns the size in characters, 0 where it is not known.
func (t *terminal) size() (cols, rows uint16) {
	c, r, err := term.GetSize(int(t.out.Fd()))
	if err != nil || c < 0 || r < 0 || c > 0xffff || r > 0xffff {
		return 0, 0
	}
	return uint16(c), uint16(r)
}

// An escape watches the keys for three times Ctrl-] within a second, with which
// the user gets the terminal back from a program that holds it, as from
// systemd-nspawn. The keys are passed on nevertheless.
type escape struct {
	r       io.Reader
	pressed func()
	now     func() time.Time

	first time.Time
	count int
}

const (
	escapeKey    = 0x1d
	escapeTimes  = 3
	escapeWithin = time.Second
)

func (e *escape) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	for _, key := range p[:n] {
		switch now := e.now(); {
		case key != escapeKey:
			e.count = 0
		case e.count == 0 || now.Sub(e.first) > escapeWithin:
			e.first, e.count = now, 1
		default:
			if e.count++; e.count == escapeTimes {
				e.pressed()
			}
		}
	}
	return n, err
}
