package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// MaxForks bounds the sandboxes of one Fork.
const MaxForks = 1000

// A source is what a sandbox is made of; the zero value is nothing but its image.
type source struct {
	dir  string // of a snapshot
	free func() // ends the use of dir; nil if that is the caller's
}

func (f source) make(ctx context.Context, driver vm.Driver, c vm.Config) (vm.Machine, error) {
	if f.dir == "" {
		return driver.Create(ctx, c)
	}
	return driver.Restore(ctx, c, f.dir)
}

// thaw makes a copy another machine than its original, before anybody uses it.
func (f source) thaw(ctx context.Context, client *AgentClient, cfg *Config) error {
	if f.dir == "" {
		return nil
	}
	if err := client.Thaw(ctx, ThawOptions{Clone: true, Hostname: first(cfg.Hostname, cfg.ID.String())}); err != nil {
		return fmt.Errorf("cannot make the copy a sandbox of its own: %w", err)
	}
	return nil
}

func (f source) release() {
	if f.free != nil {
		f.free()
	}
}

// Restore creates a sandbox of what Sandbox.Snapshot wrote into dir. It goes on where
// the other was, with entropy, time, host name and machine-id of its own: detached
// commands run, and can be attached to by their IDs; commands that had a host are
// ended. MemoryMiB, VCPUs, DiskMiB and the image are those of the snapshot; cfg leaves
// them zero, or says the same. Hostname may be another. What is wrong with a snapshot
// is an error wrapping vm.ErrBadSnapshot, before anything is started. The files in
// dir must stay until the sandbox is destroyed; any number may be made of them.
func (m *Manager) Restore(ctx context.Context, dir string, cfg Config) (*Sandbox, error) {
	return m.restore(ctx, cfg, source{dir: dir})
}

func (m *Manager) restore(ctx context.Context, cfg Config, from source) (*Sandbox, error) {
	saved, err := snapshot.Read(from.dir)
	if err != nil {
		return nil, &VMError{err}
	}
	if name := m.opts.Driver.Name(); saved.Driver != name {
		return nil, &VMError{fmt.Errorf("%w: it was made with driver %.40q, this is %q", vm.ErrBadSnapshot, saved.Driver, name)}
	}
	cfg.MemoryMiB, cfg.VCPUs, cfg.DiskMiB = first(cfg.MemoryMiB, saved.MemoryMiB), first(cfg.VCPUs, saved.VCPUs), first(cfg.DiskMiB, saved.DiskMiB)
	if cfg.Image == "" && cfg.RootfsPath == "" && m.opts.Images != nil {
		cfg.Image = saved.Image
	}
	return m.create(ctx, cfg, from)
}

// Fork makes n copies of the sandbox, or none: it saves it once, see Snapshot, and
// restores it n times, see Manager.Restore. The copies are the manager's like others,
// with IDs and host names of their own. The sandbox itself goes on.
func (s *Sandbox) Fork(ctx context.Context, n int) ([]*Sandbox, error) {
	if n < 1 || n > MaxForks {
		return nil, fmt.Errorf("%w: %d copies are outside 1..%d", ErrInvalidConfig, n, MaxForks)
	}
	dir, free, err := s.manager.tempSnapshot(ctx)
	if err != nil {
		return nil, err
	}
	users := newUsers(n, free)
	if err := s.Snapshot(ctx, dir); err != nil {
		users.leave(n)
		return nil, err
	}
	cfg := s.config
	cfg.ID, cfg.Hostname = SandboxID{}, ""
	if cfg.RootfsPath == "" {
		cfg.Image = "" // the name may stand for another by now; the snapshot knows
	}
	forks := make([]*Sandbox, n)
	errs := make([]error, n)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	slots := make(chan struct{}, forkParallel)
	for i := range n {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			from := source{dir: dir, free: sync.OnceFunc(func() { users.leave(1) })}
			if forks[i], errs[i] = s.manager.restore(ctx, cfg, from); errs[i] != nil {
				from.free()
				cancel(fmt.Errorf("another copy failed: %w", errs[i]))
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot fork sandbox %s: %w", s.id, err), s.manager.unfork(ctx, forks))
	}
	return forks, nil
}

// forkParallel is how many copies are made at once.
const forkParallel = 4

// unfork destroys the copies of a Fork that failed.
func (m *Manager) unfork(ctx context.Context, forks []*Sandbox) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var errs []error
	for _, f := range forks {
		if f == nil {
			continue
		}
		if err := m.Destroy(ctx, f.id); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tempSnapshot makes a directory for a snapshot that lives as long as its users.
func (m *Manager) tempSnapshot(ctx context.Context) (dir string, free func(), err error) {
	if m.opts.Snapshots != nil {
		return m.opts.Snapshots.Temp(ctx)
	}
	if dir, err = os.MkdirTemp("", "bouvet-fork-"); err != nil {
		return "", nil, &IOError{fmt.Errorf("cannot make directory for a snapshot: %w", err)}
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			m.log.LogAttrs(context.WithoutCancel(ctx), slog.LevelWarn, "cannot remove snapshot", slog.Any("error", err))
		}
	}, nil
}

// users counts those who use something, which goes with the last of them.
type users struct {
	mu   sync.Mutex
	n    int // guarded by mu
	free func()
}

func newUsers(n int, free func()) *users { return &users{n: n, free: free} }

// leave takes n users away.
func (u *users) leave(n int) {
	u.mu.Lock()
	u.n -= n
	last := u.n == 0
	u.mu.Unlock()
	if last {
		u.free()
	}
}
