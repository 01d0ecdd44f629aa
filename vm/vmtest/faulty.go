package vmtest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// Points of a Faulty driver. The first lie before the operation, which does not take
// place when the hook fails it; the others after it succeeded, and what it made is
// unmade.
const (
	BeforeCreate   = "before create"
	BeforeRestore  = "before restore"
	BeforeDial     = "before dial"
	BeforePause    = "before pause"
	BeforeResume   = "before resume"
	BeforeSnapshot = "before snapshot"
	BeforeDestroy  = "before destroy"
	AfterCreate    = "after create"
	AfterRestore   = "after restore"
	AfterDial      = "after dial"
	AfterSnapshot  = "after snapshot"
)

// Faulty is a driver that does what another does, except where its hook makes it
// fail.
type Faulty struct {
	vm.Driver
	hook func(point string, n int) error
	n    atomic.Int64
}

// NewFaulty decorates d. The hook is called at each point with its number, from
// 1 on over all points together; its error is what the operation fails with. It
// may also end contexts and kill machines. It must be safe for concurrent use.
func NewFaulty(d vm.Driver, hook func(point string, n int) error) *Faulty {
	return &Faulty{Driver: d, hook: hook}
}

// Points returns how many points were passed.
func (f *Faulty) Points() int { return int(f.n.Load()) }

func (f *Faulty) at(point string) error { return f.hook(point, int(f.n.Add(1))) }

// Create implements vm.Driver.
func (f *Faulty) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	return f.make(ctx, BeforeCreate, AfterCreate, func() (vm.Machine, error) { return f.Driver.Create(ctx, c) })
}

// Restore implements vm.Driver.
func (f *Faulty) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	return f.make(ctx, BeforeRestore, AfterRestore, func() (vm.Machine, error) { return f.Driver.Restore(ctx, c, dir) })
}

func (f *Faulty) make(ctx context.Context, before, after string, do func() (vm.Machine, error)) (vm.Machine, error) {
	if err := f.at(before); err != nil {
		return nil, err
	}
	m, err := do()
	if err != nil {
		return nil, err
	}
	if err := f.at(after); err != nil {
		return nil, errors.Join(err, m.Destroy(context.WithoutCancel(ctx), 0))
	}
	return &faultyMachine{m, f}, nil
}

type faultyMachine struct {
	vm.Machine
	f *Faulty
}

func (m *faultyMachine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if err := m.f.at(BeforeDial); err != nil {
		return nil, err
	}
	conn, err := m.Machine.Dial(ctx, port)
	if err != nil {
		return nil, err
	}
	if err := m.f.at(AfterDial); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (m *faultyMachine) Pause(ctx context.Context) error {
	if err := m.f.at(BeforePause); err != nil {
		return err
	}
	return m.Machine.Pause(ctx)
}

func (m *faultyMachine) Resume(ctx context.Context) error {
	if err := m.f.at(BeforeResume); err != nil {
		return err
	}
	return m.Machine.Resume(ctx)
}

func (m *faultyMachine) Snapshot(ctx context.Context, dir string) error {
	if err := m.f.at(BeforeSnapshot); err != nil {
		return err
	}
	if err := m.Machine.Snapshot(ctx, dir); err != nil {
		return err
	}
	if err := m.f.at(AfterSnapshot); err != nil {
		return errors.Join(err, snapshot.Clear(dir))
	}
	return nil
}

func (m *faultyMachine) Destroy(ctx context.Context, grace time.Duration) error {
	if err := m.f.at(BeforeDestroy); err != nil {
		return err
	}
	return m.Machine.Destroy(ctx, grace)
}
