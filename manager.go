package bouvet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

// DefaultMaxSandboxes is the limit of a Manager that is given none.
const DefaultMaxSandboxes = 100

// Images finds root file systems by name. image.Store is one.
type Images interface {
	// Acquire finds an image by its name, or by its digest, and holds it until its
	// Release is called.
	Acquire(ctx context.Context, name string) (Image, error)
}

// An Image is a root file system that is held.
type Image struct {
	// Path is the absolute path of the image file.
	Path string
	// Digest is "sha256:" and 64 hexadecimal digits; empty if it is not known.
	Digest string
	// Release ends the use. It is called once, when the sandbox is gone.
	Release func()
}

// Snapshots keeps the snapshots that Fork makes.
type Snapshots interface {
	// Temp makes an empty directory that only its owner can use, and that release
	// removes. Should this process be killed, somebody else removes it.
	Temp(ctx context.Context) (dir string, release func(), err error)
}

// ManagerOptions are what a Manager works with.
type ManagerOptions struct {
	// Driver makes the machines. It must be set.
	Driver vm.Driver
	// Images finds Config.Image. Without it a Config must give a RootfsPath.
	Images Images
	// Snapshots is where Fork keeps its snapshots; without it, in os.TempDir, where
	// nobody removes what a process that was killed has left.
	Snapshots Snapshots
	// Bases keeps snapshots of machines that have just started. Without it every machine
	// starts from nothing.
	Bases Bases
	// Defaults fill the zero fields of each Config.
	Defaults Config
	// MaxSandboxes bounds the sandboxes held at once, those under way of being
	// created included; 100 when 0, no bound when negative.
	MaxSandboxes int
	// Console receives what a machine's console shows (vm.Machine.Console) before the
	// machine is removed, also one that did not become a sandbox. The bytes are the
	// guest's, so hostile. It must return soon. Nil means that nobody wants it.
	Console func(id SandboxID, console []byte)
	// Log receives events; nil means none.
	Log *slog.Logger
}

// Manager creates, finds and destroys sandboxes. Its methods are safe for
// concurrent use, and none waits for another's boot or command.
type Manager struct {
	opts ManagerOptions
	log  *slog.Logger

	mu      sync.Mutex
	closed  bool                 // guarded by mu
	entries map[SandboxID]*entry // guarded by mu
}

// entry is a sandbox of the manager, from before its creation to after its end.
type entry struct {
	created time.Time
	cancel  context.CancelCauseFunc // ends the creation
	settled chan struct{}           // closed when the creation has succeeded or was undone
	sandbox *Sandbox                // set before settled is closed, if it succeeded
}

// get returns the sandbox, nil while it is being created.
func (e *entry) get() *Sandbox {
	select {
	case <-e.settled:
		return e.sandbox
	default:
		return nil
	}
}

// NewManager returns a Manager without sandboxes. It starts nothing.
func NewManager(opts ManagerOptions) (*Manager, error) {
	if opts.Driver == nil {
		return nil, fmt.Errorf("%w: manager has no driver", ErrInvalidConfig)
	}
	if err := opts.Defaults.Validate(); err != nil {
		return nil, err
	}
	opts.Defaults.ID = SandboxID{}
	opts.MaxSandboxes = first(opts.MaxSandboxes, DefaultMaxSandboxes)
	m := &Manager{opts: opts, log: opts.Log, entries: map[SandboxID]*entry{}}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	return m, nil
}

// Create creates a sandbox and returns its ID once its agent has answered a
// ping. ctx bounds the creation alone. Whatever keeps it from succeeding, nothing
// is left behind.
func (m *Manager) Create(ctx context.Context, cfg Config) (SandboxID, error) {
	s, err := m.CreateSandbox(ctx, cfg)
	if err != nil {
		return SandboxID{}, err
	}
	return s.id, nil
}

// CreateSandbox is Create, with the sandbox itself for a result.
func (m *Manager) CreateSandbox(ctx context.Context, cfg Config) (*Sandbox, error) {
	return m.create(ctx, cfg, source{})
}

// create makes a sandbox, of a snapshot if there is one.
func (m *Manager) create(ctx context.Context, cfg Config, from source) (*Sandbox, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults(m.opts.Defaults)
	if cfg.Log == nil {
		cfg.Log = m.log
	}
	if err := m.validate(&cfg); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(context.Canceled)
	e, err := m.reserve(cfg.ID, cancel)
	if err != nil {
		return nil, err
	}
	s, err := m.build(ctx, cfg, from, e.created)
	e.sandbox = s
	if err != nil {
		m.forget(cfg.ID, e)
	}
	close(e.settled)
	if err != nil {
		m.log.LogAttrs(ctx, slog.LevelDebug, "sandbox not created", slog.String("id", cfg.ID.String()), slog.Any("error", err))
		return nil, err
	}
	m.log.LogAttrs(ctx, slog.LevelInfo, "sandbox created", slog.String("id", cfg.ID.String()), slog.Duration("elapsed", time.Since(e.created)))
	return s, nil
}

// validate checks what depends on the driver and on the defaults.
func (m *Manager) validate(cfg *Config) error {
	if cfg.KernelPath != "" && m.opts.Driver.Features().Isolation != "microvm" {
		return fmt.Errorf("%w: driver %s boots no kernel, leave KernelPath empty", ErrInvalidConfig, m.opts.Driver.Name())
	}
	if cfg.RootfsPath == "" && m.opts.Images == nil {
		return fmt.Errorf("%w: no image store, give a RootfsPath", ErrInvalidConfig)
	}
	if cfg.Detached && !m.opts.Driver.Features().Detached {
		return fmt.Errorf("%w: driver %s cannot detach sandboxes", ErrInvalidConfig, m.opts.Driver.Name())
	}
	if cfg.DiskMiB != 0 && !m.opts.Driver.Features().Disk {
		return fmt.Errorf("%w: driver %s gives sandboxes no disk, leave DiskMiB 0: their files are in memory", ErrInvalidConfig, m.opts.Driver.Name())
	}
	return cfg.Validate()
}

// reserve takes a place for id.
func (m *Manager) reserve(id SandboxID, cancel context.CancelCauseFunc) (*entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch _, taken := m.entries[id]; {
	case m.closed:
		return nil, fmt.Errorf("%w: manager is closed", ErrInvalidState)
	case taken:
		return nil, &VMError{fmt.Errorf("sandbox %s: %w", id, vm.ErrExists)}
	case m.opts.MaxSandboxes > 0 && len(m.entries) >= m.opts.MaxSandboxes:
		return nil, &LimitError{Max: m.opts.MaxSandboxes}
	}
	e := &entry{created: time.Now(), cancel: cancel, settled: make(chan struct{})}
	m.entries[id] = e
	return e, nil
}

// forget removes e, if it is still the one of id.
func (m *Manager) forget(id SandboxID, e *entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[id] == e {
		delete(m.entries, id)
	}
}

// build makes the sandbox, or undoes in reverse what it had made.
func (m *Manager) build(ctx context.Context, cfg Config, given source, created time.Time) (_ *Sandbox, err error) {
	image, err := m.image(ctx, &cfg)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			image.Release()
		}
	}()
	machine, client, from, err := m.make(ctx, &cfg, image, given)
	if err != nil {
		return nil, err
	}
	if err := context.Cause(ctx); err != nil {
		m.console(cfg.ID, machine)
		err = errors.Join(fmt.Errorf("cannot create sandbox: %w", err), client.Close(), m.undo(ctx, machine))
		if from.dir != given.dir {
			from.release()
		}
		return nil, err
	}
	return newSandbox(m, cfg, created, machine, client, func() { from.release(); image.Release() }), nil //nolint:contextcheck // ctx bounds the creation, not the sandbox.
}

// console hands over what a machine that is about to be removed has shown.
func (m *Manager) console(id SandboxID, machine vm.Machine) {
	if m.opts.Console != nil {
		m.opts.Console(id, machine.Console())
	}
}

// image finds the root file system of cfg.
func (m *Manager) image(ctx context.Context, cfg *Config) (Image, error) {
	if cfg.RootfsPath != "" {
		return Image{Path: cfg.RootfsPath, Release: func() {}}, context.Cause(ctx)
	}
	image, err := m.opts.Images.Acquire(ctx, cfg.Image)
	if err != nil {
		return Image{}, fmt.Errorf("cannot open image %q: %w", cfg.Image, err)
	}
	return image, nil
}

// creationError gives a driver's error its kind.
func creationError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, vm.ErrInvalidConfig):
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	case ctx.Err() != nil:
		return fmt.Errorf("cannot create sandbox: %w (%w)", context.Cause(ctx), err)
	default:
		return &VMError{fmt.Errorf("cannot create machine: %w", err)}
	}
}

// Get returns a sandbox. One that is still being created is an
// InvalidStateError; one whose machine died is returned until it is destroyed.
func (m *Manager) Get(id SandboxID) (*Sandbox, error) {
	m.mu.Lock()
	e := m.entries[id]
	m.mu.Unlock()
	if e == nil {
		return nil, &NotFoundError{ID: id}
	}
	if s := e.get(); s != nil {
		return s, nil
	}
	return nil, &InvalidStateError{Expected: Ready, Actual: Creating}
}

// List returns the IDs of the sandboxes that Get returns, in the order of their
// creation.
func (m *Manager) List() []SandboxID {
	type item struct {
		id      SandboxID
		created time.Time
	}
	var items []item
	m.mu.Lock()
	for id, e := range m.entries {
		if e.get() != nil {
			items = append(items, item{id, e.created})
		}
	}
	m.mu.Unlock()
	slices.SortFunc(items, func(a, b item) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.id.String(), b.id.String()))
	})
	ids := make([]SandboxID, len(items))
	for i, it := range items {
		ids[i] = it.id
	}
	return ids
}

// errDestroyedWhileCreating ends a creation whose sandbox somebody destroyed.
var errDestroyedWhileCreating = fmt.Errorf("sandbox was destroyed while it was created: %w", &InvalidStateError{Expected: Creating, Actual: Destroyed})

// Destroy destroys a sandbox and forgets it. When that fails the sandbox stays,
// Destroyed, so that Destroy can be called again. A creation under way is undone.
func (m *Manager) Destroy(ctx context.Context, id SandboxID) error {
	m.mu.Lock()
	e := m.entries[id]
	m.mu.Unlock()
	if e == nil {
		return &NotFoundError{ID: id}
	}
	return m.destroy(ctx, id, e)
}

func (m *Manager) destroy(ctx context.Context, id SandboxID, e *entry) error {
	e.cancel(errDestroyedWhileCreating)
	select {
	case <-e.settled:
	case <-ctx.Done():
		return fmt.Errorf("cannot destroy sandbox %s: %w", id, context.Cause(ctx))
	}
	if e.sandbox != nil {
		if err := e.sandbox.Destroy(ctx); err != nil {
			return err
		}
		m.log.LogAttrs(ctx, slog.LevelInfo, "sandbox destroyed", slog.String("id", id.String()))
	}
	m.forget(id, e)
	return nil
}

// destroyParallel is how many sandboxes DestroyAll destroys at once.
const destroyParallel = 16

// DestroyAll destroys every sandbox, those being created included, and returns
// all errors joined.
func (m *Manager) DestroyAll(ctx context.Context) error {
	m.mu.Lock()
	entries := make(map[SandboxID]*entry, len(m.entries))
	for id, e := range m.entries {
		e.cancel(errDestroyedWhileCreating)
		entries[id] = e
	}
	m.mu.Unlock()
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
		slot = make(chan struct{}, destroyParallel)
	)
	for id, e := range entries {
		wg.Go(func() {
			slot <- struct{}{}
			defer func() { <-slot }()
			if err := m.destroy(ctx, id, e); err != nil {
				mu.Lock()
				errs = append(errs, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Close refuses further creations and destroys every sandbox. It may be called
// again when it failed.
func (m *Manager) Close(ctx context.Context) error {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	return m.DestroyAll(ctx)
}
