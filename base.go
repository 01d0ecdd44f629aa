package bouvet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"

	"github.com/bouvet-run/bouvet/vm"
)

// Bases keeps snapshots of machines that have just started, of which sandboxes are
// made where that is quicker than to start a machine from nothing (vm.Features.Base).
// Nobody has used such a machine, and each sandbox that is made of it is thawed like
// any copy.
type Bases interface {
	// Acquire returns the directory of the snapshot of that key, which stays until
	// release. If there is none, create fills an empty directory that only its owner can
	// use; however many ask at once, in whatever processes, one does so, and the others
	// wait. ctx bounds the call.
	Acquire(ctx context.Context, key string, create func(dir string) error) (dir string, release func(), err error)
	// Drop removes the snapshot of that key, which is of no use. Who has it keeps it.
	Drop(key string) error
}

// baseKey names what a machine of c and image is like when it has started, or is empty
// if such machines have no base.
func (m *Manager) baseKey(c *Config, image Image) string {
	boots := m.opts.Driver.Features().Base
	if m.opts.Bases == nil || boots == "" || image.Digest == "" || c.KernelPath != "" {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "1 %s %s %s %d %d %d %t", m.opts.Driver.Name(), boots, image.Digest, c.MemoryMiB, c.DiskMiB, c.VCPUs, c.Detached))
	return hex.EncodeToString(sum[:16])
}

// make makes the machine of a sandbox whose agent answers: of what the caller says,
// else of a base, else, and if there is none that can be used, from nothing. A base whose
// copy does not become a sandbox is dropped, and that is an error: the copy had the
// sandbox's ID, which is not used twice.
func (m *Manager) make(ctx context.Context, cfg *Config, image Image, from source) (vm.Machine, *AgentClient, source, error) {
	key := ""
	if from.dir == "" {
		key = m.baseKey(cfg, image)
	}
	if key == "" {
		machine, client, err := m.start(ctx, cfg, image, from)
		return machine, client, from, err
	}
	base, err := m.base(ctx, key, cfg, image)
	if err == nil {
		var machine vm.Machine
		var client *AgentClient
		if machine, client, err = m.start(ctx, cfg, image, base); err == nil {
			return machine, client, base, nil
		}
		base.release()
		if !errors.Is(err, vm.ErrExists) && ctx.Err() == nil {
			err = errors.Join(err, m.opts.Bases.Drop(key))
		}
		if !errors.Is(err, vm.ErrBadSnapshot) {
			return nil, nil, source{}, err
		}
	}
	if ctx.Err() != nil {
		return nil, nil, source{}, err
	}
	m.log.LogAttrs(ctx, slog.LevelWarn, "no base can be used, the machine starts from nothing", slog.String("id", cfg.ID.String()), slog.Any("error", err))
	machine, client, err := m.start(ctx, cfg, image, source{})
	return machine, client, source{}, err
}

// base holds the base of that key, and makes it if it is not there.
func (m *Manager) base(ctx context.Context, key string, cfg *Config, image Image) (source, error) {
	dir, release, err := m.opts.Bases.Acquire(ctx, key, func(dir string) error { return m.saveBase(ctx, cfg, image, dir) })
	if err != nil {
		return source{}, err
	}
	return source{dir: dir, free: release}, nil
}

// saveBase starts a machine like that of cfg, saves it into dir, and destroys it.
func (m *Manager) saveBase(ctx context.Context, cfg *Config, image Image, dir string) (err error) {
	fresh := *cfg
	fresh.ID, fresh.Hostname = NewSandboxID(), ""
	m.log.LogAttrs(ctx, slog.LevelInfo, "saving a machine that has just started, for others to be made of", slog.String("id", fresh.ID.String()), slog.String("image", image.Digest))
	machine, client, err := m.start(ctx, &fresh, image, source{})
	if err != nil {
		return err
	}
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = errors.Join(err, client.Close(), machine.Destroy(undo, 0))
	}()
	if err := client.Freeze(ctx); err != nil {
		return err
	}
	return machine.Snapshot(ctx, dir)
}

// start makes a machine and waits for its agent, or undoes in reverse what it has
// made. A copy is thawed.
func (m *Manager) start(ctx context.Context, cfg *Config, image Image, from source) (_ vm.Machine, _ *AgentClient, err error) {
	machine, err := from.make(ctx, m.opts.Driver, cfg.machine(image))
	if err != nil {
		return nil, nil, creationError(ctx, err)
	}
	defer func() {
		if err == nil {
			return
		}
		m.console(cfg.ID, machine)
		if undoErr := m.undo(ctx, machine); undoErr != nil {
			err = errors.Join(err, undoErr)
		}
	}()
	client, err := Connect(ctx, machine, &ClientOptions{
		ConnectTimeout: cfg.ConnectTimeout, RPCTimeout: cfg.RPCTimeout, Name: cfg.ID.String(), Log: cfg.Log, DialAhead: true,
	})
	if err != nil {
		return nil, nil, err
	}
	if err := from.thaw(ctx, client, cfg); err != nil {
		return nil, nil, errors.Join(err, client.Close())
	}
	return machine, client, nil
}

// undo destroys a machine that does not become a sandbox.
func (m *Manager) undo(ctx context.Context, machine vm.Machine) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := machine.Destroy(ctx, 0); err != nil {
		return &VMError{fmt.Errorf("cannot destroy half-made machine: %w", err)}
	}
	return nil
}
