package cli

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image"
)

func TestEscapeKey(t *testing.T) {
	const key = "\x1d"
	for _, tt := range []struct {
		name  string
		reads []string
		step  time.Duration
		want  bool
	}{
		{"three in one read", []string{key + key + key}, 0, true},
		{"three apart", []string{key, key, key}, 300 * time.Millisecond, true},
		{"two", []string{key, key}, 0, false},
		{"too slow", []string{key, key, key}, 600 * time.Millisecond, false},
		{"interrupted", []string{key + key, "x", key}, 0, false},
		{"after others", []string{"text" + key + key, key}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now, pressed := time.Unix(0, 0), false
			var readers []io.Reader
			for _, r := range tt.reads {
				readers = append(readers, strings.NewReader(r))
			}
			e := &escape{r: io.MultiReader(readers...), pressed: func() { pressed = true }, now: func() time.Time {
				now = now.Add(tt.step)
				return now
			}}
			var b strings.Builder
			if _, err := io.Copy(&b, e); err != nil {
				t.Fatal(err)
			}
			if pressed != tt.want {
				t.Errorf("pressed is %v, want %v", pressed, tt.want)
			}
			if want := strings.Join(tt.reads, ""); b.String() != want {
				t.Errorf("passed on %q, want %q", b.String(), want)
			}
		})
	}
}

func TestProgressLine(t *testing.T) {
	events := []image.Event{
		{Stage: "one"},
		{Stage: "one", Done: 5, Total: 10, Unit: "entries"},
		{Stage: "two \x1b[31m", Done: 1_500_000, Total: 3_000_000, Unit: "bytes"},
	}
	now := time.Unix(0, 0)
	clock := func() time.Time { return now }

	var plain strings.Builder
	p := &progressLine{w: &plain, now: clock, began: now, stop: make(chan struct{}), ended: make(chan struct{})}
	close(p.ended)
	for _, e := range events {
		now = now.Add(time.Second)
		p.event(e)
	}
	p.clear()
	if got, want := plain.String(), "bouvet: one (1s)\nbouvet: two \\x1b[31m (3s)\n"; got != want {
		t.Errorf("in a file: %q, want %q", got, want)
	}

	var live strings.Builder
	now = time.Unix(0, 0)
	p = &progressLine{w: &live, now: clock, began: now, live: true, width: 20, stop: make(chan struct{}), ended: make(chan struct{})}
	close(p.ended)
	for _, e := range events {
		now = now.Add(time.Second)
		p.event(e)
	}
	p.clear()
	want := "\rbouvet: one (1s)\x1b[K\rbouvet: one 5 of 10\x1b[K\rbouvet: two \\x1b[31\x1b[K\r\x1b[K"
	if got := live.String(); got != want {
		t.Errorf("on a terminal: %q, want %q", got, want)
	}
}

// T23, T51: what a terminal was made to answer does not reach the shell; what was
// typed while no command had the terminal does.
func TestUnreadInput(t *testing.T) {
	keys, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tty.Close(); _ = keys.Close() })
	waiting := func() int {
		t.Helper()
		n, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCINQ)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	answer := func() {
		t.Helper()
		if _, err := keys.WriteString("touch pwned\r"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the answer", func() bool { return waiting() > 0 })
	}
	lent := openTerminal(tty, tty)
	answer()
	lent.dropInput()
	if waiting() == 0 {
		t.Error("what was typed before a command had the terminal is gone")
	}
	if err := lent.raw(); err != nil {
		t.Fatal(err)
	}
	lent.restore(true)
	answer()
	lent.dropInput()
	if n := waiting(); n > 0 {
		t.Errorf("%d bytes wait for the shell, want none", n)
	}
	(*terminal)(nil).dropInput() // there may be none
}
