package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// stateFile is the only file of a snapshot beside its manifest. runsc can give the
// guest's memory a file of its own, which it does not write from the beginning to the
// end.
const stateFile = checkpointfiles.StateFileName

// detailHostBound is the only detail of our manifests: whether the agent in the
// machine ends with its channel.
const detailHostBound = "host_bound"

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	if err := m.Gone(); err != nil {
		return err
	}
	if err := snapshot.Prepare(dir); err != nil {
		return err
	}
	manifest, err := m.driver.manifest(ctx, &m.config)
	if err != nil {
		return err
	}
	manifest.Details = map[string]string{detailHostBound: strconv.FormatBool(m.hostBound)}
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, snapshot.Clear(dir))
		}
	}()
	s, err := openSave(dir, m.config.MemoryMiB)
	if err != nil {
		m.end()
		return fmt.Errorf("cannot save machine %s: %w", m.ID(), err)
	}
	stop := context.AfterFunc(ctx, s.abort)
	err = m.run(ctx, "save", func() error { return s.run(m) }, func() {})
	stop()
	if err != nil {
		return err
	}
	return snapshot.Write(ctx, dir, *manifest, stateFile)
}

// manifest is that of a machine of c, saved here and now.
func (d *Driver) manifest(ctx context.Context, c *vm.Config) (*snapshot.Manifest, error) {
	build, err := d.build()
	if err != nil {
		return nil, err
	}
	cpu, err := snapshot.HostCPU()
	if err != nil {
		return nil, fmt.Errorf("cannot tell which processor this is: %w", err)
	}
	m := snapshot.Of(c, Name, build, cpu)
	if m.Kernel, err = d.agentDigest(); err != nil {
		return nil, fmt.Errorf("cannot use agent image: %w", err)
	}
	if m.Image, err = snapshot.ImageDigest(ctx, c); err != nil {
		return nil, err
	}
	return &m, nil
}

// Restore implements vm.Driver.
func (d *Driver) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	if err := d.check(&c); err != nil {
		return nil, err
	}
	from, err := d.open(ctx, &c, dir)
	if err != nil {
		return nil, fmt.Errorf("cannot restore machine %s: %w", c.ID, err)
	}
	return d.keeper.Make(ctx, &c, func(dir *rundir.Dir) (vm.Machine, error) { return d.create(ctx, &c, dir, from) })
}

// A saved is a snapshot that was verified.
type saved struct {
	dir       string
	hostBound bool
}

// open verifies the snapshot in dir, of which a machine of c is to be made.
func (d *Driver) open(ctx context.Context, c *vm.Config, dir string) (*saved, error) {
	m, err := snapshot.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	here, err := d.manifest(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := m.Match(here); err != nil {
		return nil, err
	}
	if len(m.Files) != 1 || m.Files[0].Name != stateFile {
		return nil, fmt.Errorf("%w: %.200s: its files are not those of a gVisor machine", vm.ErrBadSnapshot, dir)
	}
	hostBound, err := strconv.ParseBool(m.Details[detailHostBound])
	if err != nil || len(m.Details) != 1 {
		return nil, fmt.Errorf("%w: %.200s: its details are not those of a gVisor machine", vm.ErrBadSnapshot, dir)
	}
	if hostBound && c.Detached {
		return nil, fmt.Errorf("%w: the machine was saved as one that ends with its owner and stays that; save a detached one", vm.ErrUnsupported)
	}
	return &saved{dir: dir, hostBound: hostBound}, nil
}

// link makes path the directory from which runsc takes the state. It looks for other
// files there too, which a snapshot must not be able to bring along.
func (s *saved) link(path string) error {
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = os.Symlink(filepath.Join(s.dir, stateFile), filepath.Join(path, stateFile))
	}
	if err != nil {
		return fmt.Errorf("cannot prepare restoring: %w", err)
	}
	return nil
}
