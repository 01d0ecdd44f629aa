package gvisor

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

const (
	bundleDir = "bundle"
	stateDir  = "runsc"
	savedDir  = "saved"
	pidFile   = "pid"
	ownExe    = "/proc/self/exe"
	// overheadMiB is what the sentry needs on top of the guest's memory.
	overheadMiB = 48
	// pidsMax bounds a sandbox's threads and stub processes on the host: about 20,
	// plus two for every process of the guest. The sentry dies when it hits the
	// limit, so it only protects the host from the worst.
	pidsMax = 16384
)

// A Driver runs machines under gVisor. It implements vm.Driver.
type Driver struct {
	keeper   *life.Keeper
	agent    string
	exe      string
	rootless bool
	log      *slog.Logger
	// build and agentDigest name what a saved machine depends on.
	build, agentDigest func() (string, error)
}

var _ vm.Driver = (*Driver)(nil)

// New makes a driver. It looks at the host but starts nothing: whether a sandbox
// really boots is found out by booting one.
func New(o Options) (*Driver, error) {
	if !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.AgentImage) {
		return nil, fmt.Errorf("cannot use gVisor: state directory %q and agent image %q must be absolute paths", o.StateDir, o.AgentImage)
	}
	d := &Driver{
		keeper: &life.Keeper{
			Driver: Name, Base: filepath.Join(o.StateDir, "machines"),
			Cgroups: cgroup.Find(o.CgroupParent), Mark: rootFlag,
		},
		agent:    o.AgentImage,
		exe:      o.Exe,
		rootless: os.Geteuid() != 0,
		log:      o.Log,
	}
	if d.exe == "" {
		d.exe = ownExe
	}
	if err := checkExe(d.exe); err != nil {
		return nil, err
	}
	d.build = sync.OnceValues(func() (string, error) { return buildOf(d.exe) })
	d.agentDigest = sync.OnceValues(func() (string, error) { return fileDigest(d.agent) })
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	return d, nil
}

// Name implements vm.Driver.
func (*Driver) Name() string { return Name }

// Features implements vm.Driver.
func (d *Driver) Features() vm.Features {
	return vm.Features{
		Isolation:   "gvisor",
		MemoryLimit: d.keeper.Cgroups.Limits("memory"),
		CPULimit:    d.keeper.Cgroups.Limits("cpu"),
		Pause:       true,
		Snapshot:    true,
		Detached:    true,
	}
}

// Create implements vm.Driver.
func (d *Driver) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := d.check(&c); err != nil {
		return nil, err
	}
	return d.keeper.Make(ctx, &c, func(dir *rundir.Dir) (vm.Machine, error) { return d.create(ctx, &c, dir, nil) })
}

// check refuses what cannot become a machine.
func (d *Driver) check(c *vm.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.DiskMiB != 0 {
		return fmt.Errorf("cannot give a gVisor machine a disk of %d MiB: its writable layer is part of its memory: %w", c.DiskMiB, vm.ErrUnsupported)
	}
	for what, path := range map[string]string{"image": c.Image, "agent image": d.agent} {
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("cannot use %s: %w", what, err)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%w: %s %s is not a regular file", vm.ErrInvalidConfig, what, path)
		}
	}
	return nil
}

// Sweep implements vm.Driver. Detached machines that run are no leftovers.
func (d *Driver) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	return d.keeper.Sweep(ctx, remove)
}

// create makes the machine that dir is for, as it was when from was saved, or a fresh
// one if from is nil.
func (d *Driver) create(ctx context.Context, c *vm.Config, dir *rundir.Dir, from *saved) (_ vm.Machine, err error) {
	command, hostBound := []string{"run", "-detach", fmt.Sprintf("-pass-fd=%d:%d", channelFD, channelFD)}, !c.Detached
	newMux := vsock.NewFirstMux
	if from != nil {
		newMux = vsock.NewMux // the guest still serves the session of its original
		if err := from.link(dir.Join(savedDir)); err != nil {
			return nil, err
		}
		command, hostBound = []string{"restore", "-image-path=" + dir.Join(savedDir)}, from.hostBound
	}
	if err := writeBundle(dir.Join(bundleDir), makeSpec(c, d.agent)); err != nil {
		return nil, err
	}
	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overheadMiB) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	if err := d.keeper.Cgroups.Create(c.ID, limits); err != nil {
		return nil, err
	}
	e, g, err := makeEnds(c.ID)
	if err != nil {
		return nil, err
	}
	log := life.NewTail(tailSize)
	// The session's first words wait in the channel when the agent comes up.
	mux := newMux(e.channel)
	defer func() {
		g.close()
		if err != nil {
			_ = mux.Close()
			e.close()
		}
	}()
	go followLog(e.log, log)
	if err := d.runHelper(ctx, c.ID, dir.Path(), command, e, g, log); err != nil {
		return nil, err
	}
	pid, err := readPIDFile(dir.Join(pidFile))
	if err != nil {
		return nil, err
	}
	sentry, err := openSentry(pid, dir.Path())
	if err != nil {
		return nil, err
	}
	err = dir.Update(func(r *rundir.Record) {
		r.State, r.Main = rundir.StateRunning, sentry.Process
	})
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		sentry.close()
		return nil, err
	}
	m := &machine{driver: d, config: *c, sentry: sentry, ends: e, runscLog: log, control: newControl(dir.Join(stateDir)), hostBound: hostBound}
	m.Machine = life.NewMachine(life.Parts{
		Config: c, Keeper: d.keeper, Dir: dir, Channel: mux, Kill: sentry.kill,
		Release: func() {
			e.close()
			sentry.close()
		},
	})
	go m.watch()
	return m, nil
}
