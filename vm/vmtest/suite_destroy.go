package vmtest

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

var destroySections = []section{
	{"leaves nothing", destroyLeavesNothing},
	{"idempotent and concurrent", destroyConcurrently},
	{"ended context", destroyEndedContext},
	{"T26 kill -9", killed},
	{"T26 kill -9 during calls", killedDuringCalls},
	{"during calls", destroyDuringCalls},
	{"T39 beside dials", destroyBesideDials},
}

// After Destroy all is gone: processes and files, streams and Done, whether the
// guest was asked nicely or not, and whether it had come up or not.
func destroyLeavesNothing(e *env) {
	for _, grace := range []time.Duration{0, prompt} {
		for _, up := range []bool{false, true} {
			m := e.create(e.config())
			if up {
				e.connect(m).ping()
			}
			if err := m.Destroy(e.context(), grace); err != nil {
				e.Errorf("grace %v: %v", grace, err)
			}
			e.nothingLeft()
			e.ended(m, time.Second)
			if err := m.Err(); err != nil {
				e.Errorf("Err after Destroy: got %v, want nil", err)
			}
			begin := time.Now()
			_, err := m.Dial(e.context(), wire.PortRPC)
			e.wantGone("Dial after Destroy", err)
			if took := time.Since(begin); took > prompt {
				e.Errorf("Dial after Destroy took %v", took)
			}
		}
	}
}

func destroyConcurrently(e *env) {
	g := e.boot(e.config())
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			if err := g.Destroy(e.context(), time.Duration(i%2)*prompt); err != nil {
				e.Errorf("Destroy: %v", err)
			}
		})
	}
	all.Wait()
	e.nothingLeft()
	for range 2 {
		e.destroy(g)
	}
	if err := g.Err(); err != nil {
		e.Errorf("Err after Destroy: got %v, want nil", err)
	}
}

// A caller whose context ended may call again.
func destroyEndedContext(e *env) {
	m := e.create(e.config())
	ctx, cancel := context.WithCancel(e.context())
	cancel()
	if err := m.Destroy(ctx, 0); err != nil && !errors.Is(err, context.Canceled) {
		e.Errorf("got %v, want Canceled or nil", err)
	}
	e.destroy(m)
	e.nothingLeft()
}

// kill ends the machine by force and makes sure that this is noticed in a second.
func (e *env) kill(m vm.Machine) {
	e.Helper()
	e.s.Kill(e, m)
	e.ended(m, time.Second)
	e.wantGone("Err", m.Err())
	_, err := m.Dial(e.context(), wire.PortRPC)
	e.wantGone("Dial", err)
}

// A machine that died by itself says so, stays dead, and is cleared away.
func killed(e *env) {
	for _, up := range []bool{false, true} {
		m := e.create(e.config())
		if up {
			e.connect(m).ping()
		}
		e.kill(m)
		if err := m.Destroy(e.context(), bound); err != nil {
			e.Errorf("Destroy of a dead machine: %v", err)
		}
		e.wantGone("Err after Destroy", m.Err())
		e.nothingLeft()
	}
}

// Calls under way end when the machine does.
func killedDuringCalls(e *env) {
	e.duringCalls(func(g *guest) { e.kill(g.Machine) })
}

func destroyDuringCalls(e *env) {
	e.duringCalls(func(g *guest) { e.destroy(g.Machine) })
}

// duringCalls ends a machine while it is being worked with.
func (e *env) duringCalls(end func(g *guest)) {
	e.Helper()
	g := e.boot(e.config())
	idle := e.dial(g, wire.PortRPC)
	calls := map[string]func() error{
		"exec": func() error { _, err := g.Exec(e.context(), "sleep 4711", nil); return err },
		"read of a stream": func() error {
			_, err := idle.Read(make([]byte, 1))
			return err
		},
	}
	cmd := g.Command(e.context(), "sleep", "4711")
	if err := cmd.Start(); err != nil {
		e.Fatal(err)
	}
	calls["command"] = cmd.Wait
	failed := make(map[string]chan error)
	for name, call := range calls {
		result := make(chan error, 1)
		failed[name] = result
		go func() { result <- call() }()
	}
	e.eventually("the command of exec runs", func() bool {
		all, err := g.Processes(e.context())
		if err != nil {
			e.Fatal(err)
		}
		return len(all) == 2
	})
	end(g)
	late := time.NewTimer(prompt)
	defer late.Stop()
	for name, result := range failed {
		select {
		case err := <-result:
			if err == nil {
				e.Errorf("%s: got no error from a machine that ended", name)
			}
		case <-late.C:
			e.Fatalf("%s still waits %v after the machine's end", name, prompt)
		}
	}
	e.destroy(g)
	e.nothingLeft()
}

// A Dial that races with the end succeeds or says that the machine is gone.
func destroyBesideDials(e *env) {
	g := e.boot(e.config())
	dialled := make(chan struct{}, 1)
	var dials sync.WaitGroup
	for range 4 {
		dials.Go(func() {
			for {
				conn, err := g.Dial(e.context(), wire.PortRPC)
				if errors.Is(err, vm.ErrGone) {
					return
				}
				if err != nil {
					e.Errorf("got %v, want ErrGone", err)
					return
				}
				_ = conn.Close()
				select {
				case dialled <- struct{}{}:
				default:
				}
			}
		})
	}
	<-dialled
	e.destroy(g)
	dials.Wait()
}
