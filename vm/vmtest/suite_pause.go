package vmtest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

var pauseSections = []section{
	{"pause and resume", pauseResume},
	{"stands still", pauseStandsStill},
	{"T30 twenty times under traffic", pauseTraffic},
	{"pauses concurrently", pauseConcurrently},
	{"pause with an ended context", pauseEndedContext},
	{"destroy while paused", pauseDestroy},
	{"T26 kill -9 while paused", pauseKill},
}

// pausable skips the section where the driver cannot pause; it says so properly.
func (e *env) pausable() {
	e.Helper()
	if e.d.Features().Pause {
		return
	}
	m := e.create(e.config())
	for what, do := range map[string]func(context.Context) error{"Pause": m.Pause, "Resume": m.Resume} {
		if err := do(e.context()); !errors.Is(err, vm.ErrUnsupported) {
			e.Errorf("%s: got %v, want ErrUnsupported", what, err)
		}
	}
	e.Skip("the driver cannot pause machines on this host: its Features say why it need not")
}

// silence is how long a paused guest is listened to.
const silence = 300 * time.Millisecond

// silent fails if a Dial of the paused machine comes through.
func (e *env) silent(m vm.Machine) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.context(), silence)
	defer cancel()
	conn, err := m.Dial(ctx, wire.PortRPC)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		e.Errorf("Dial of a paused machine: got %v, want the context's end", err)
	}
}

func (e *env) pause(m vm.Machine) {
	e.Helper()
	if err := m.Pause(e.context()); err != nil {
		e.Fatalf("Pause: %v", err)
	}
}

func (e *env) resume(m vm.Machine) {
	e.Helper()
	if err := m.Resume(e.context()); err != nil {
		e.Fatalf("Resume: %v", err)
	}
}

// Both are idempotent, a Dial waits, and streams that are open stay so.
func pauseResume(e *env) {
	e.pausable()
	g := e.boot(e.config())
	open := e.dial(g, wire.PortRPC)
	e.resume(g) // of one that runs
	g.ping()
	for range 2 {
		e.pause(g)
	}
	e.living(g)
	e.silent(g)
	type dialled struct {
		net.Conn
		error
	}
	waiting := make(chan dialled, 1)
	go func() {
		conn, err := g.Dial(e.context(), wire.PortRPC)
		waiting <- dialled{conn, err}
	}()
	for range 2 {
		e.resume(g)
	}
	if d := <-waiting; d.error != nil {
		e.Errorf("a Dial that waited: %v", d.error)
	} else {
		e.rpcPing(d.Conn)
		_ = d.Close()
	}
	e.rpcPing(open)
	g.ping()
	e.living(g)
}

// A busy guest uses no processor while it is paused.
func pauseStandsStill(e *env) {
	e.pausable()
	e.sandboxed()
	if e.s.CPUTime == nil {
		e.Skip("the driver's subject does not tell CPU time: give it a CPUTime")
	}
	g := e.boot(e.config())
	c := g.Command(e.context(), "sh", "-c", "while :; do :; done")
	if err := c.Start(); err != nil {
		e.Fatal(err)
	}
	begin := e.s.CPUTime(e, g.Machine)
	e.eventually("it is busy", func() bool { return e.s.CPUTime(e, g.Machine)-begin > 50*time.Millisecond })
	e.pause(g)
	begin = e.s.CPUTime(e, g.Machine)
	e.silent(g)
	if used := e.s.CPUTime(e, g.Machine) - begin; used > silence/4 {
		e.Errorf("in %v of pause it used the processor for %v", silence, used)
	}
	e.resume(g)
	begin = e.s.CPUTime(e, g.Machine)
	e.eventually("it is busy again", func() bool { return e.s.CPUTime(e, g.Machine)-begin > 50*time.Millisecond })
	g.ping()
}

// traffic runs numbers through a command in the guest, in both directions, until it
// is told to stop, and then checks that none was lost, doubled or changed.
type traffic struct {
	stop chan struct{}
	over chan error
}

func (g *guest) traffic() *traffic {
	g.e.Helper()
	t := &traffic{stop: make(chan struct{}), over: make(chan error, 1)}
	c := g.Command(g.e.context(), "cat")
	in, err := c.StdinPipe()
	if err != nil {
		g.e.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		g.e.Fatal(err)
	}
	if err := c.Start(); err != nil {
		g.e.Fatal(err)
	}
	var sent uint64
	writing := make(chan error, 1)
	go func() { writing <- t.write(in, &sent) }()
	go func() {
		got, err := count(bufio.NewReaderSize(out, 64<<10))
		werr := <-writing
		if err == nil && got != sent {
			err = fmt.Errorf("got %d numbers, sent %d", got, sent)
		}
		t.over <- errors.Join(err, werr, c.Wait())
	}()
	return t
}

// batch is how many numbers go at a time.
const batch = 512

func (t *traffic) write(w io.WriteCloser, sent *uint64) error {
	buf := make([]byte, 0, 8*batch)
	for {
		select {
		case <-t.stop:
			return w.Close()
		default:
		}
		buf = buf[:0]
		for range batch {
			buf = binary.BigEndian.AppendUint64(buf, *sent)
			*sent++
		}
		if _, err := w.Write(buf); err != nil {
			return errors.Join(err, w.Close())
		}
	}
}

// count reads numbers to the end, which must be those from 0 on.
func count(r io.Reader) (n uint64, err error) {
	var b [8]byte
	for {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
		if got := binary.BigEndian.Uint64(b[:]); got != n {
			return n, fmt.Errorf("got number %d, want %d", got, n)
		}
		n++
	}
}

// end stops it and fails unless all went well.
func (t *traffic) end(e *env) {
	e.Helper()
	close(t.stop)
	if err := <-t.over; err != nil {
		e.Errorf("traffic: %v", err)
	}
}

func pauseTraffic(e *env) {
	e.pausable()
	g := e.boot(e.config())
	t := g.traffic()
	for range 20 {
		e.pause(g)
		e.resume(g)
		g.ping()
	}
	t.end(e)
}

// Whoever is last wins, and nobody is stuck.
func pauseConcurrently(e *env) {
	e.pausable()
	g := e.boot(e.config())
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 5 {
				if err := errors.Join(g.Pause(e.context()), g.Resume(e.context())); err != nil {
					e.Errorf("got %v", err)
				}
			}
		})
	}
	all.Wait()
	e.resume(g)
	g.ping()
}

func pauseEndedContext(e *env) {
	e.pausable()
	g := e.boot(e.config())
	ctx, cancel := context.WithCancel(e.context())
	cancel()
	for what, do := range map[string]func(context.Context) error{"Pause": g.Pause, "Resume": g.Resume} {
		if err := do(ctx); err != nil && !errors.Is(err, context.Canceled) {
			e.Errorf("%s: got %v, want Canceled or nil", what, err)
		}
	}
	e.resume(g)
	g.ping()
}

func pauseDestroy(e *env) {
	e.pausable()
	for _, grace := range []time.Duration{0, 100 * time.Millisecond} {
		g := e.boot(e.config())
		e.pause(g)
		if err := g.Destroy(e.context(), grace); err != nil {
			e.Errorf("Destroy: %v", err)
		}
		e.nothingLeft()
		if err := g.Err(); err != nil {
			e.Errorf("Err after Destroy: got %v, want nil", err)
		}
		for what, do := range map[string]func(context.Context) error{"Pause": g.Pause, "Resume": g.Resume} {
			e.wantGone(what+" after Destroy", do(e.context()))
		}
	}
}

func pauseKill(e *env) {
	e.pausable()
	g := e.boot(e.config())
	e.pause(g)
	e.s.Kill(e, g.Machine)
	e.ended(g, prompt)
	e.wantGone("Err", g.Err())
	for what, do := range map[string]func(context.Context) error{"Pause": g.Pause, "Resume": g.Resume} {
		e.wantGone(what, do(e.context()))
	}
	e.destroy(g)
	e.nothingLeft()
}
