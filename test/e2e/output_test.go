package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
)

// heapGrowth is how much this process's live heap may grow while a guest floods it.
const heapGrowth = 16 << 20

// A gauge is a writer that watches the heap as bytes go by.
type gauge struct {
	n, next int64
	start   uint64
	most    uint64
}

func newGauge() *gauge {
	debug.FreeOSMemory()
	return &gauge{start: heap()}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}

func (g *gauge) Write(p []byte) (int, error) {
	g.n += int64(len(p))
	if g.n >= g.next {
		g.next = g.n + 32<<20
		g.most = max(g.most, heap())
	}
	return len(p), nil
}

func (g *gauge) check(t *testing.T) {
	t.Helper()
	if grown := int64(g.most) - int64(g.start); grown > heapGrowth {
		t.Errorf("the heap grew by %d MiB over %d MiB of output", grown>>20, g.n>>20)
	} else {
		t.Logf("the heap grew by %d KiB over %d MiB of output", grown>>10, g.n>>20)
	}
}

// T05: a flood of output goes through without staying here.
func TestFlood(t *testing.T) {
	total := int64(1 << 30)
	if testing.Short() {
		total = 128 << 20
	}
	s := box(t, bouvet.Config{})
	g := newGauge()
	c := s.Command(timed(t), "head", "-c", itoa(total), "/dev/zero")
	c.Stdout = g
	begin := time.Now()
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB in %v", g.n>>20, time.Since(begin))
	if g.n != total {
		t.Errorf("got %d bytes, want %d", g.n, total)
	}
	g.check(t)
	answers(t, s)
}

// T05: a limit on output ends the command that goes beyond it, and JSON-RPC cuts it.
func TestFloodIsCapped(t *testing.T) {
	s := box(t, bouvet.Config{})
	c := s.Command(timed(t), "yes")
	c.OutputLimit = 1 << 20
	out, err := c.Output()
	if len(out) != 1<<20 || !errors.Is(err, bouvet.ErrOutputLimit) {
		t.Errorf("got %d bytes, %v, want 1 MiB and ErrOutputLimit", len(out), err)
	}
	eventually(t, "yes has ended", func() bool {
		all, err := s.Client().Processes(timed(t))
		return err == nil && len(all) == 0
	})
	// T10: one line of 64 MiB.
	r, err := s.Execute(timed(t), "head -c 67108864 /dev/zero | tr '\\0' x")
	if err != nil || len(r.Stdout) < 1<<20 || len(r.Stdout) > 1<<20+64 || !strings.HasSuffix(r.Stdout, "[output truncated]") {
		t.Errorf("got %d bytes, %v, want 1 MiB and a mark", len(r.Stdout), err)
	}
}

// A blocked writer takes nothing until it is released.
type blocked struct {
	taken   atomic.Int64
	release chan struct{}
}

func (b *blocked) Write(p []byte) (int, error) {
	b.taken.Add(int64(len(p)))
	<-b.release
	return len(p), nil
}

// T09: a reader that stops holds up its own command and nothing else; nothing is
// buffered without bound on the way.
func TestReaderStops(t *testing.T) {
	s := box(t, bouvet.Config{})
	const stuck = 4
	ctx, cancel := context.WithCancel(timed(t))
	defer cancel()
	b := &blocked{release: make(chan struct{})}
	var cmds []*bouvet.Cmd
	for i := range stuck {
		// It tells on standard error how much it could write.
		c := s.Command(ctx, "python3", "-c", `
import os
n = 0
while True:
    n += os.write(1, bytes(65536))
    open("/tmp/written`+itoa(i)+`", "w").write(str(n))
`)
		c.Stdout = b
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, c)
	}
	read := func() string { return sh(t, s, "cat /tmp/written* 2>/dev/null; true") }
	last := ""
	for since := time.Now(); time.Since(since) < 500*time.Millisecond; answers(t, s) {
		if now := read(); now != last {
			last, since = now, time.Now()
		}
	}
	var written int64
	for i := range stuck {
		written += atoi(t, sh(t, s, "cat /tmp/written"+itoa(i)))
	}
	t.Logf("%d commands wrote %d KiB into %d KiB that were taken", stuck, written>>10, b.taken.Load()>>10)
	if written > stuck*2<<20 { // pipe, agent, windows of the mux
		t.Errorf("%d commands that nobody reads wrote %d KiB", stuck, written>>10)
	}
	out, err := s.Command(timed(t), "head", "-c", "8000000", "/dev/zero").Output()
	if err != nil || len(out) != 8_000_000 {
		t.Errorf("another command: got %d bytes, %v", len(out), err)
	}
	cancel()
	close(b.release)
	for _, c := range cmds {
		if err := c.Wait(); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want Canceled", err)
		}
	}
}

// T10: what goes in comes out, whatever bytes they are.
func TestBytes(t *testing.T) {
	s := box(t, bouvet.Config{})
	every := make([]byte, 0, 1<<16)
	for i := range 1 << 16 {
		every = append(every, byte(i), byte(i>>8))
	}
	c := s.Command(timed(t), "cat")
	c.Stdin = bytes.NewReader(every)
	if out, err := c.Output(); err != nil || !bytes.Equal(out, every) {
		t.Errorf("got %d bytes, %v, want the %d sent", len(out), err, len(every))
	}
	for _, arg := range []string{"", " ", "ü\u202e\ufffd", "\n\r\t\x1b[2J", "$(reboot) `id` ; * ' \"", "{\"id\":1}", strings.Repeat("x", 100_000)} {
		c := s.Command(timed(t), "printf", "%s", arg)
		c.Env = []string{"ARG=" + arg}
		if out, err := c.Output(); err != nil || string(out) != arg {
			t.Errorf("argument %.40q: got %.40q, %v", arg, out, err)
		}
		c = s.Command(timed(t), "sh", "-c", `printf %s "$ARG"`)
		c.Env = []string{"ARG=" + arg}
		if out, err := c.Output(); err != nil || string(out) != arg {
			t.Errorf("environment %.40q: got %.40q, %v", arg, out, err)
		}
	}
	for _, arg := range []string{"a\x00b", "\x00"} {
		c := s.Command(timed(t), "printf", arg)
		if err := c.Run(); err == nil {
			t.Errorf("argument %q was taken", arg)
		}
		c = s.Command(timed(t), "true")
		c.Env = []string{"A=" + arg}
		if err := c.Run(); err == nil {
			t.Errorf("environment %q was taken", arg)
		}
	}
	// JSON has no way to say these, so they must be refused rather than changed.
	for _, arg := range []string{"\xff", "a\xc3\x28", "\xed\xa0\x80"} {
		out, err := s.Command(timed(t), "printf", "%s", arg).Output()
		if err == nil && string(out) != arg {
			t.Errorf("argument %q became %q", arg, out)
		}
	}
}

// endless is a reader that never ends.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	return len(p), nil
}

// T11: input that nobody reads neither blocks the end of the command nor piles up.
func TestUnreadInput(t *testing.T) {
	s := box(t, bouvet.Config{})
	g := newGauge()
	in := &endless{}
	c := s.Command(timed(t), "sh", "-c", "sleep 0.5; exit 3")
	c.Stdin = in
	var exit *bouvet.ExitError
	if err := c.Run(); !errors.As(err, &exit) || exit.Code != 3 {
		t.Errorf("got %v, want exit status 3", err)
	}
	g.most = heap()
	g.check(t)
	if n := in.read.Load(); n > 64<<20 {
		t.Errorf("%d MiB were read for a command that read nothing", n>>20)
	}

	c = s.Command(timed(t), "sleep", "0.2")
	stdin, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(stdin, io.LimitReader(in, 1<<30)); err == nil {
		t.Errorf("all %d bytes went to a command that read nothing", n)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	answers(t, s)
}
