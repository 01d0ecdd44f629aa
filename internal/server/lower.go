package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm"
)

// Lower is what the sandboxes run on.
type Lower struct {
	Manager   *bouvet.Manager
	Driver    vm.Driver
	Snapshots *snapstore.Store
	Images    daemon.Images
	Pins      bouvet.Images
	Sweep     func(ctx context.Context) error
}

// thisMachine opens what runs sandboxes here.
func thisMachine(exe string) func(context.Context, *Config, string, *slog.Logger) (Lower, error) {
	return func(ctx context.Context, c *Config, dir string, log *slog.Logger) (Lower, error) {
		o := local.Options{StateDir: c.StateDir, Driver: c.Driver, Exe: exe, Log: log}
		driver, err := local.Driver(ctx, o)
		if err != nil {
			return Lower{}, err
		}
		with := o
		if c.ImagesFrom != "" {
			with.StateDir = c.ImagesFrom
		}
		images, err := local.Store(with)
		if err != nil {
			return Lower{}, err
		}
		snapshots, err := savedIn(dir)
		if err != nil {
			return Lower{}, err
		}
		bases, err := local.Bases(o)
		if err != nil {
			return Lower{}, err
		}
		manager, err := bouvet.NewManager(bouvet.ManagerOptions{
			Driver: driver, Images: local.Images(images), Snapshots: snapshots, Bases: bases,
			Defaults: local.Defaults(ctx, driver, bouvet.Config{}), MaxSandboxes: -1, Log: log,
		})
		if err != nil {
			return Lower{}, err
		}
		sweep := func(ctx context.Context) error {
			_, err := local.Sweep(ctx, o, true)
			return err
		}
		return Lower{Manager: manager, Driver: driver, Snapshots: snapshots, Images: images, Pins: local.Images(images), Sweep: sweep}, nil
	}
}

// savedIn opens the daemon's own store of snapshots: those of bouvet snapshot are others,
// and nobody removes one of these from under it.
func savedIn(dir string) (*snapstore.Store, error) {
	saved, err := makeDir(dir, "snapshots")
	if err != nil {
		return nil, fmt.Errorf("cannot open snapshots: %w", err)
	}
	return snapstore.Open(saved)
}
