package vmtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// What a fake machine is saved as.
const (
	fakeVersion = "fake 1"
	fakeCPU     = "fake"
	fakeState   = "state.bin"
	// fakeImage is the digest of the image of a machine whose Config has none.
	fakeImage = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
)

// A gate is closed while a machine is paused.
type gate struct {
	mu     sync.Mutex
	paused bool          // guarded by mu
	open   chan struct{} // closed while the machine runs; guarded by mu
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// set closes or opens the gate and reports whether it was closed before.
func (g *gate) set(paused bool) (before bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before = g.paused
	switch {
	case paused && !before:
		g.open = make(chan struct{})
	case !paused && before:
		close(g.open)
	}
	g.paused = paused
	return before
}

// pass waits until the gate is open, or the machine has ended.
func (g *gate) pass(over <-chan struct{}) {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	select {
	case <-open:
	case <-over:
	}
}

// gatedConn is the guest's end of the channel: while the machine is paused nothing
// goes in or out, and nothing is lost.
type gatedConn struct {
	net.Conn
	gate *gate
	over <-chan struct{}
}

func (c *gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.pass(c.over)
	return n, err
}

func (c *gatedConn) Write(p []byte) (int, error) {
	c.gate.pass(c.over)
	return c.Conn.Write(p)
}

// live returns an error unless the machine runs or is paused.
func (m *fakeMachine) live(ctx context.Context, what string) error {
	select {
	case <-m.over:
		return fmt.Errorf("cannot %s machine %s: %w", what, m.id, vm.ErrGone)
	default:
		return context.Cause(ctx)
	}
}

// Pause implements vm.Machine. The guest's agent stands still; commands, which are
// this host's, do not.
func (m *fakeMachine) Pause(ctx context.Context) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	if err := m.live(ctx, "pause"); err != nil {
		return err
	}
	m.gate.set(true)
	return nil
}

// Resume implements vm.Machine.
func (m *fakeMachine) Resume(ctx context.Context) error {
	m.saving.Lock()
	defer m.saving.Unlock()
	if err := m.live(ctx, "resume"); err != nil {
		return err
	}
	m.gate.set(false)
	return nil
}

// Snapshot implements vm.Machine. What it writes is worth nothing, and is checked
// like a real driver's.
func (m *fakeMachine) Snapshot(ctx context.Context, dir string) (err error) {
	m.saving.Lock()
	defer m.saving.Unlock()
	if err := m.live(ctx, "save"); err != nil {
		return err
	}
	if err := snapshot.Prepare(dir); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, snapshot.Clear(dir))
		}
	}()
	before := m.gate.set(true)
	defer func() { m.gate.set(before) }()
	state := make([]byte, 64<<10)
	_, _ = rand.Read(state) // never fails
	if err := os.WriteFile(filepath.Join(dir, fakeState), state, 0o600); err != nil {
		return err
	}
	alive, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.over:
			cancel()
		case <-alive.Done():
		}
	}()
	err = pause(alive, m.fake.opts.SnapshotDelay)
	if gone := m.live(ctx, "save"); gone != nil {
		return gone
	}
	if err != nil {
		return err
	}
	return snapshot.Write(ctx, dir, manifestOf(&m.config), fakeState)
}

func manifestOf(c *vm.Config) snapshot.Manifest {
	m := snapshot.Of(c, "fake", fakeVersion, fakeCPU)
	if m.Image == "" {
		m.Image = fakeImage
	}
	return m
}

// Restore implements vm.Driver. The guest is a fresh one: what ran in the old one is
// not there.
func (f *Fake) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Detached {
		return nil, fmt.Errorf("detached machines: %w", vm.ErrUnsupported)
	}
	saved, err := snapshot.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	here := manifestOf(&c)
	if err := saved.Match(&here); err != nil {
		return nil, err
	}
	if err := pause(ctx, f.opts.CreateDelay); err != nil {
		return nil, err
	}
	guest := f.opts.Restored
	if guest == nil {
		guest = f.opts.Guest
	}
	return f.add(c, guest, dir) //nolint:contextcheck // a machine outlives the call that makes it.
}
