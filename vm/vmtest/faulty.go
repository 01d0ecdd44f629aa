package vmtest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

// Points of a Faulty driver. The first three lie before the operation, which does
// not take place when the hook fails it; the others after it succeeded, and what
// it made is unmade.
const (
	BeforeCreate  = "before create"
	BeforeDial    = "before dial"
	BeforeDestroy = "before destroy"
	AfterCreate   = "after create"
	AfterDial     = "after dial"
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
	if err := f.at(BeforeCreate); err != nil {
		return nil, err
	}
	m, err := f.Driver.Create(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := f.at(AfterCreate); err != nil {
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

func (m *faultyMachine) Destroy(ctx context.Context, grace time.Duration) error {
	if err := m.f.at(BeforeDestroy); err != nil {
		return err
	}
	return m.Machine.Destroy(ctx, grace)
}
