package vmtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

// A Guest is what runs in a fake machine: it serves the streams that l accepts,
// each of which begins with a CONNECT line, until ctx ends, and returns when all
// it started is gone.
type Guest func(ctx context.Context, l net.Listener)

// FakeOptions are the knobs of a Fake. The zero value is useful.
type FakeOptions struct {
	// Guest runs in each machine; nil is the real agent, whose commands run on
	// this host as this user.
	Guest Guest
	// Restored runs in each machine that is restored; Guest when nil.
	Restored Guest
	// ReadyDelay is how long a machine runs before its guest does: streams are
	// not answered until then.
	ReadyDelay time.Duration
	// CreateDelay is how long Create takes.
	CreateDelay time.Duration
	// DieAfter makes each machine die by itself after that long; 0 means never.
	DieAfter time.Duration
	// DestroyDelay is how long Destroy takes.
	DestroyDelay time.Duration
	// SnapshotDelay is how long Snapshot takes.
	SnapshotDelay time.Duration
	// Console is what each machine's console shows.
	Console string
	// Isolation is what Features tells; "fake" when empty.
	Isolation string
	// Base is what Features tells.
	Base string
}

// Fake is a driver whose machines are goroutines of the test. It is stricter
// than a real one: an ID is refused for good once it was used, a machine that
// died must still be destroyed, and the test fails if one was not, or if a snapshot
// was removed before the machines that were restored from it.
type Fake struct {
	t    testing.TB
	opts FakeOptions

	mu       sync.Mutex
	used     map[string]bool         // guarded by mu
	machines map[string]*fakeMachine // those not destroyed; guarded by mu
	most     int                     // machines at once; guarded by mu
}

var _ vm.Driver = (*Fake)(nil)

// NewFake returns a Fake that lives as long as t.
func NewFake(t testing.TB, opts FakeOptions) *Fake {
	if opts.Guest == nil {
		opts.Guest = Agent
	}
	f := &Fake{t: t, opts: opts, used: map[string]bool{}, machines: map[string]*fakeMachine{}}
	t.Cleanup(func() {
		for _, m := range f.left() {
			t.Errorf("machine %s was not destroyed", m.id)
			_ = m.Destroy(context.Background(), 0)
		}
	})
	return f
}

func (f *Fake) left() []*fakeMachine {
	f.mu.Lock()
	defer f.mu.Unlock()
	var left []*fakeMachine
	for _, m := range f.machines {
		left = append(left, m)
	}
	return left
}

// Living returns how many machines are not destroyed yet.
func (f *Fake) Living() int { return len(f.left()) }

// Created returns how many machines were ever created.
func (f *Fake) Created() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.used)
}

// Most returns how many machines there were at once at most.
func (f *Fake) Most() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.most
}

// Kill makes a machine die by itself, as by kill -9. It reports whether there
// was one.
func (f *Fake) Kill(id string) bool {
	f.mu.Lock()
	m := f.machines[id]
	f.mu.Unlock()
	if m != nil {
		m.end(fmt.Errorf("%w: killed", vm.ErrGone))
	}
	return m != nil
}

// Name implements vm.Driver.
func (f *Fake) Name() string { return "fake" }

// Features implements vm.Driver.
func (f *Fake) Features() vm.Features {
	isolation := f.opts.Isolation
	if isolation == "" {
		isolation = "fake"
	}
	return vm.Features{Isolation: isolation, Pause: true, Snapshot: true, Base: f.opts.Base}
}

// Create implements vm.Driver.
func (f *Fake) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Detached {
		return nil, fmt.Errorf("detached machines: %w", vm.ErrUnsupported)
	}
	if err := pause(ctx, f.opts.CreateDelay); err != nil {
		return nil, err
	}
	if c.DiskMiB != 0 {
		return nil, fmt.Errorf("machines with a disk: %w", vm.ErrUnsupported)
	}
	return f.add(c, f.opts.Guest, "") //nolint:contextcheck // a machine outlives the call that makes it.
}

// add starts a machine, one of the snapshot in dir if that is not empty.
func (f *Fake) add(c vm.Config, guest Guest, dir string) (vm.Machine, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.used[c.ID] {
		return nil, fmt.Errorf("machine %s: %w", c.ID, vm.ErrExists)
	}
	m, err := f.start(c, guest, dir)
	if err != nil {
		return nil, err
	}
	f.used[c.ID], f.machines[c.ID] = true, m
	f.most = max(f.most, len(f.machines))
	return m, nil
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	default:
	}
	if d == 0 {
		return nil
	}
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Sweep implements vm.Driver. What is in this process does not outlive it.
func (f *Fake) Sweep(context.Context, bool) ([]vm.Leftover, error) { return nil, nil }

// fakeMachine is a socketpair with a mux at one end and a Guest at the other.
type fakeMachine struct {
	fake   *Fake
	id     string
	config vm.Config
	guest  Guest
	dir    string // of the snapshot that it was restored from, or empty
	mux    *vsock.Mux
	gate   *gate
	ch     net.Conn           // the guest's end
	stop   context.CancelFunc // ends the guest
	done   chan struct{}      // closed when the guest is gone
	over   chan struct{}      // closed by the first end
	once   sync.Once
	err    error // set before over is closed

	saving sync.Mutex // one Pause, Resume or Snapshot at a time

	destroying chan struct{} // a mutex
	destroyed  bool          // guarded by destroying
}

func (f *Fake) start(c vm.Config, guestOf Guest, dir string) (*fakeMachine, error) {
	host, guest, err := socketpair()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &fakeMachine{
		fake: f, id: c.ID, config: c, guest: guestOf, dir: dir, mux: vsock.NewMux(host), gate: newGate(), stop: stop,
		done: make(chan struct{}), over: make(chan struct{}), destroying: make(chan struct{}, 1),
	}
	m.ch = &gatedConn{Conn: guest, gate: m.gate, over: m.over}
	go m.run(ctx)
	if f.opts.DieAfter > 0 {
		timer := time.AfterFunc(f.opts.DieAfter, func() { m.end(fmt.Errorf("%w: its time had come", vm.ErrGone)) })
		context.AfterFunc(ctx, func() { timer.Stop() })
	}
	return m, nil
}

// run is the life of the guest.
func (m *fakeMachine) run(ctx context.Context) {
	defer close(m.done)
	defer func() { _ = errors.Join(m.ch.Close(), m.mux.Close()) }()
	if pause(ctx, m.fake.opts.ReadyDelay) != nil {
		return
	}
	l := vsock.NewMuxListener(m.ch)
	defer func() { _ = l.Close() }()
	m.guest(ctx, l)
	if ctx.Err() == nil {
		m.end(fmt.Errorf("%w: guest returned", vm.ErrGone))
	}
}

// end ends the machine because of err, nil for a Destroy.
func (m *fakeMachine) end(err error) {
	m.once.Do(func() {
		m.err = err
		close(m.over)
		m.stop()
	})
}

func (m *fakeMachine) ID() string            { return m.id }
func (m *fakeMachine) Done() <-chan struct{} { return m.done }

func (m *fakeMachine) Err() error {
	select {
	case <-m.done:
		return m.err
	default:
		return nil
	}
}

// Dial implements vm.Machine.
func (m *fakeMachine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	gone := func() error { return fmt.Errorf("cannot dial port %d: %w", port, vm.ErrGone) }
	select {
	case <-m.over:
		return nil, gone()
	default:
	}
	conn, err := m.mux.Dial(ctx, port)
	if err != nil && ctx.Err() == nil {
		select {
		case <-m.over:
			return nil, errors.Join(gone(), err)
		default:
		}
	}
	return conn, err
}

// Destroy implements vm.Machine.
func (m *fakeMachine) Destroy(ctx context.Context, _ time.Duration) error {
	select {
	case m.destroying <- struct{}{}:
		defer func() { <-m.destroying }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if m.destroyed {
		return nil
	}
	if err := pause(ctx, m.fake.opts.DestroyDelay); err != nil {
		return err
	}
	m.end(nil)
	select {
	case <-m.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if m.dir != "" {
		if _, err := snapshot.Read(m.dir); err != nil {
			m.fake.t.Errorf("machine %s outlived its snapshot: %v", m.id, err)
		}
	}
	m.fake.mu.Lock()
	delete(m.fake.machines, m.id)
	m.fake.mu.Unlock()
	m.destroyed = true
	return nil
}

// Console implements vm.Machine.
func (m *fakeMachine) Console() []byte { return []byte(m.fake.opts.Console) }

// socketpair returns the two ends of a stream of bytes.
func socketpair() (host, guest net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make socketpair: %w", err)
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		c, connErr := net.FileConn(f)
		conns[i], err = c, errors.Join(err, connErr, f.Close())
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				err = errors.Join(err, c.Close())
			}
		}
		return nil, nil, err
	}
	return conns[0], conns[1], nil
}
