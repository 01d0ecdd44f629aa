package gvisor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/bouvet-run/bouvet/internal/life"
)

// A control asks a sentry to stop and to go on. The sentry counts both, and none of
// its operations can be called off, so they come one after the other, and each is
// seen to its end even if its caller has left.
type control struct {
	dir    string        // with the control socket
	busy   chan struct{} // holds an element during an operation
	paused atomic.Bool   // by Pause; changed only during an operation
}

func newControl(dir string) control { return control{dir: dir, busy: make(chan struct{}, 1)} }

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	before := m.control.paused.Load()
	return m.run(ctx, "pause", func() error { return m.pause(true) }, func() { _ = m.pause(before) })
}

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	before := m.control.paused.Load()
	return m.run(ctx, "resume", func() error { return m.pause(false) }, func() { _ = m.pause(before) })
}

// Destroy implements vm.Machine. A paused agent cannot see that it is asked to end.
func (m *machine) Destroy(ctx context.Context, grace time.Duration) error {
	if m.control.paused.Load() {
		grace = 0
	}
	return m.Machine.Destroy(ctx, grace)
}

// pause stops the guest or lets it go on, if it is not so already.
func (m *machine) pause(paused bool) error {
	if m.control.paused.Load() == paused {
		return nil
	}
	method := boot.ContMgrResume
	if paused {
		method = boot.ContMgrPause
	}
	if err := m.call(method, nil); err != nil {
		return err
	}
	m.control.paused.Store(paused)
	return nil
}

// begin waits until no other operation runs. After it, run is to be called, or end.
func (m *machine) begin(ctx context.Context) error {
	if err := m.Gone(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case m.control.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.Done():
		return m.Gone()
	}
}

func (m *machine) end() { <-m.control.busy }

// run runs an operation to its end, which the machine's end brings about too. If ctx
// ends first, run returns its error at once, and what the operation has done by its
// end is undone.
func (m *machine) run(ctx context.Context, name string, do func() error, undo func()) error {
	var settled atomic.Bool // by whoever comes first: the operation's success or the caller's leaving
	result := make(chan error, 1)
	go func() {
		defer m.end()
		err := do()
		if err == nil && !settled.CompareAndSwap(false, true) {
			undo()
		}
		result <- err
	}()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		if settled.CompareAndSwap(false, true) {
			return context.Cause(ctx)
		}
		err = <-result
	}
	if err == nil {
		return nil
	}
	if gone := m.goneAfter(err); gone != nil {
		return gone
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // which has called it off
	}
	return fmt.Errorf("cannot %s machine %s: %w", name, m.ID(), err)
}

// goneAfter is the reason why a call failed, if that is the machine's end, which is
// seen a little after that of the connection.
func (m *machine) goneAfter(err error) error {
	if remote := (urpc.RemoteError{}); errors.As(err, &remote) {
		return m.Gone()
	}
	timer := time.NewTimer(life.SettleTime)
	defer timer.Stop()
	select {
	case <-m.Done():
	case <-timer.C:
	}
	return m.Gone()
}

// call asks the sentry for something over runsc's control socket. It returns once
// that is done or the sentry has ended.
func (m *machine) call(method string, arg any) error {
	// The socket's path may be longer than an address can be.
	dir, err := unix.Open(m.control.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot find sentry: %w", err)
	}
	conn, err := client.ConnectTo(fmt.Sprintf("/proc/self/fd/%d/runsc-%s.sock", dir, m.ID()))
	_ = unix.Close(dir)
	if err != nil {
		return fmt.Errorf("cannot reach sentry: %w", err)
	}
	defer func() { _ = conn.Close() }()
	return conn.Call(method, arg, nil)
}
