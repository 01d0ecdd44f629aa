package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/vm"
)

// Auto chooses the best driver that works here, which is found out by booting a
// sandbox with each: Firecracker, QEMU with KVM, gVisor, and QEMU that emulates a
// processor, many times slower, last. The answer is remembered until the host boots
// or one of the programs and kernels that it depends on is another.
const Auto = "auto"

// A Trial is what came of trying a driver.
type Trial struct {
	// Driver is the driver's name, and Accel what runs its guests' instructions where
	// there is a choice: "kvm" or "tcg".
	Driver, Accel string
	// Err is why it does not work, and nil if it does.
	Err error
	// Remedy is what a user may do about that, if the trial knows it and Err does not
	// say it.
	Remedy string
	// Taken marks the best one that works.
	Taken bool
	// Took is how long the trial took.
	Took time.Duration
}

// Name is the driver's name and the acceleration.
func (t *Trial) Name() string { return strings.TrimSuffix(t.Driver+"-"+t.Accel, "-") }

// Try tries all drivers, the best first, whatever is remembered, and remembers the
// answer. It fails when ctx ends first; that no driver works is no error. Nothing of
// the trials is left.
func Try(ctx context.Context, opts Options) ([]Trial, error) {
	c, err := newChooser(opts) //nolint:contextcheck // making the agent's image is short.
	if err != nil {
		return nil, err
	}
	return c.tryAll(ctx)
}

// choose returns the driver that Auto stands for.
func choose(ctx context.Context, opts Options) (vm.Driver, error) {
	c, err := newChooser(opts) //nolint:contextcheck // making the agent's image is short.
	if err != nil {
		return nil, err
	}
	return c.choose(ctx)
}

// A chooser finds the best driver.
type chooser struct {
	candidates []candidate // the best first
	// kvm is kvm.Check.
	kvm func(context.Context) error
	// image returns the root file system to try with.
	image   func() (string, error)
	answers answers
	now     conditions
	log     *slog.Logger
}

// A candidate is one way to run sandboxes.
type candidate struct {
	driver, accel string
	// virtual means that nothing works without KVM.
	virtual bool
	// time bounds the trial, for a driver that hangs. It is not what a trial takes.
	time time.Duration
	make func() (vm.Driver, error)
}

// choose takes the candidate that is remembered, or else looks for one.
func (c *chooser) choose(ctx context.Context) (vm.Driver, error) {
	if driver := c.remembered(ctx); driver != nil {
		return driver, nil
	}
	unlock, err := c.answers.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if driver := c.remembered(ctx); driver != nil { // somebody else was quicker
		return driver, nil
	}
	driver, trials, err := c.find(ctx, false)
	if err != nil {
		return nil, err
	}
	if driver == nil {
		return nil, noneWorks(trials)
	}
	return driver, nil
}

func (c *chooser) tryAll(ctx context.Context) ([]Trial, error) {
	unlock, err := c.answers.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	_, trials, err := c.find(ctx, true)
	return trials, err
}

// remembered makes the driver that worked before. One that cannot be made any more is
// worth another look at all of them.
func (c *chooser) remembered(ctx context.Context) vm.Driver {
	a, found := c.answers.read(c.now)
	if !found {
		return nil
	}
	i := slices.IndexFunc(c.candidates, func(k candidate) bool { return k.driver == a.Driver && k.accel == a.Accel })
	if i < 0 {
		return nil
	}
	driver, err := c.candidates[i].make()
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelWarn, "cannot use driver that worked before", slog.String("driver", a.Driver), slog.Any("error", err))
		return nil
	}
	return driver
}

// find tries the candidates until one works, or all of them, and remembers the best.
// Without one that works the driver is nil.
func (c *chooser) find(ctx context.Context, all bool) (vm.Driver, []Trial, error) {
	var best vm.Driver
	var trials []Trial
	a := answer{Conditions: c.now, Tried: time.Now()}
	virtual := newOnce(func() error { return c.kvm(ctx) })
	for i := range c.candidates {
		k := &c.candidates[i]
		began := time.Now()
		t := Trial{Driver: k.driver, Accel: k.accel}
		driver, err := c.try(ctx, k, virtual)
		if ctx.Err() != nil { // which says nothing about the driver
			return nil, nil, fmt.Errorf("cannot choose driver: %w", context.Cause(ctx))
		}
		t.Err, t.Remedy, t.Took = err, remedy(err), time.Since(began)
		if err == nil && best == nil {
			best, t.Taken = driver, true
			a.Driver, a.Accel = k.driver, k.accel
		}
		if best == nil && timedOut(err) {
			a.Uncertain = true
		}
		c.log.LogAttrs(ctx, slog.LevelInfo, "driver tried", slog.String("driver", t.Name()), slog.Bool("works", err == nil),
			slog.Duration("took", t.Took), slog.Any("error", err))
		if trials = append(trials, t); best != nil && !all {
			break
		}
	}
	if best == nil {
		return nil, trials, nil
	}
	if err := c.answers.write(&a); err != nil { // we try again next time, and that is all
		c.log.LogAttrs(ctx, slog.LevelWarn, "cannot remember driver", slog.Any("error", err))
	}
	return best, trials, nil
}

// try makes a driver and boots a sandbox with it.
func (c *chooser) try(ctx context.Context, k *candidate, virtual func() error) (vm.Driver, error) {
	if k.virtual { // first: without it, whatever else is missing need not be got
		if err := virtual(); err != nil {
			return nil, err
		}
	}
	driver, err := k.make()
	if err != nil {
		return nil, err
	}
	image, err := c.image()
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, k.time)
	defer cancel()
	if err := boot(bounded, driver, image, k.time); err != nil {
		return nil, fmt.Errorf("cannot boot a sandbox: %w", err)
	}
	return driver, nil
}

const (
	// trialMemoryMiB is the memory of a trial's sandbox, which runs nothing but the
	// agent.
	trialMemoryMiB = 128
	// removalTime bounds the removal of a trial's sandbox.
	removalTime = 10 * time.Second
)

// boot creates a sandbox, waits for an answered ping and removes it.
func boot(ctx context.Context, driver vm.Driver, image string, limit time.Duration) (err error) {
	manager, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: driver})
	if err != nil {
		return err
	}
	defer func() {
		removal, cancel := context.WithTimeout(context.WithoutCancel(ctx), removalTime)
		defer cancel()
		err = errors.Join(err, manager.Close(removal))
	}()
	s, err := manager.CreateSandbox(ctx, bouvet.Config{
		RootfsPath: image, MemoryMiB: trialMemoryMiB, VCPUs: 1, ConnectTimeout: limit,
	})
	if err != nil {
		return err
	}
	return s.Client().Ping(ctx)
}

// newOnce is sync.OnceValue for one goroutine.
func newOnce(f func() error) func() error {
	var done bool
	var err error
	return func() error {
		if !done {
			done, err = true, f()
		}
		return err
	}
}

// timedOut reports whether a trial failed for want of time, which a busy host may have
// been the reason for.
func timedOut(err error) bool {
	e, ok := errors.AsType[*kvm.Error](err)
	return ok && e.TimedOut || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, bouvet.ErrAgentTimeout) || errors.Is(err, os.ErrDeadlineExceeded)
}

func remedy(err error) string {
	if e, ok := errors.AsType[*kvm.Error](err); ok {
		return e.Remedy
	}
	return ""
}

// noneWorks says why each of them does not.
func noneWorks(trials []Trial) error {
	var why []string
	for _, t := range trials {
		text := t.Name() + ": " + t.Err.Error()
		if t.Remedy != "" {
			text += " (" + t.Remedy + ")"
		}
		why = append(why, text)
	}
	return fmt.Errorf("no driver works here: %w: %s", vm.ErrUnsupported, cmp.Or(strings.Join(why, "; "), "there is none"))
}
