package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

const (
	bundleDir = "bundle"
	pidFile   = "pid"
	// overheadMiB is what the sentry needs on top of the guest's memory.
	overheadMiB = 48
	// pidsMax bounds a sandbox's threads and stub processes on the host: about 20,
	// plus two for every process of the guest. The sentry dies when it hits the
	// limit, so it only protects the host from the worst.
	pidsMax = 16384
	// cleanupTimeout bounds the removal of a machine, which does not end with the
	// caller's context.
	cleanupTimeout = 30 * time.Second
)

// A Driver runs machines under gVisor. It implements vm.Driver.
type Driver struct {
	base     string // directory of the machines' directories
	agent    string
	exe      string
	rootless bool
	cgroups  *cgroup.Tree
	log      *slog.Logger
}

var _ vm.Driver = (*Driver)(nil)

// New makes a driver. It looks at the host but starts nothing: whether a sandbox
// really boots is found out by booting one.
func New(o Options) (*Driver, error) {
	if !filepath.IsAbs(o.StateDir) || !filepath.IsAbs(o.AgentImage) {
		return nil, fmt.Errorf("cannot use gVisor: state directory %q and agent image %q must be absolute paths", o.StateDir, o.AgentImage)
	}
	d := &Driver{
		base:     filepath.Join(o.StateDir, "machines"),
		agent:    o.AgentImage,
		exe:      o.Exe,
		rootless: os.Geteuid() != 0,
		cgroups:  cgroup.Find(o.CgroupParent),
		log:      o.Log,
	}
	if d.exe == "" {
		d.exe = "/proc/self/exe"
	}
	if err := checkExe(d.exe); err != nil {
		return nil, err
	}
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
		MemoryLimit: d.cgroups.Limits("memory"),
		CPULimit:    d.cgroups.Limits("cpu"),
		Detached:    true,
	}
}

// Create implements vm.Driver.
func (d *Driver) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	for what, path := range map[string]string{"image": c.Image, "agent image": d.agent} {
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("cannot use %s: %w", what, err)
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%w: %s %s is not a regular file", vm.ErrInvalidConfig, what, path)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	dir, err := rundir.Create(d.base, c.ID, d.intent(&c))
	if errors.Is(err, rundir.ErrExists) {
		return nil, fmt.Errorf("cannot create machine %s: %w", c.ID, vm.ErrExists)
	}
	if err != nil {
		return nil, err
	}
	m, err := d.create(ctx, &c, dir)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_, cleanErr := d.dismantle(clean, dir)
		return nil, errors.Join(fmt.Errorf("cannot create machine %s: %w", c.ID, err), cleanErr)
	}
	return m, nil
}

// intent is the record of a machine that is about to be made.
func (d *Driver) intent(c *vm.Config) rundir.Record {
	r := rundir.Record{Driver: Name, State: rundir.StateCreating, Detached: c.Detached}
	for _, path := range d.cgroups.Dirs(c.ID) {
		r.Add(rundir.Resource{Kind: rundir.KindCgroup, Path: path})
	}
	return r
}

func (d *Driver) create(ctx context.Context, c *vm.Config, dir *rundir.Dir) (_ *machine, err error) {
	if err := writeBundle(dir.Join(bundleDir), makeSpec(c, d.agent)); err != nil {
		return nil, err
	}
	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overheadMiB) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	if err := d.cgroups.Create(c.ID, limits); err != nil {
		return nil, err
	}
	e, g, err := makeEnds(c.ID)
	if err != nil {
		return nil, err
	}
	log := &tail{}
	// The session's first words wait in the channel when the agent comes up.
	mux := vsock.NewMux(e.channel)
	defer func() {
		g.close()
		if err != nil {
			_ = mux.Close()
			e.close()
		}
	}()
	go followLog(e.log, log)
	if err := d.runHelper(ctx, c.ID, dir.Path(), e, g, log); err != nil {
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
	m := &machine{
		driver: d, id: c.ID, detached: c.Detached, dir: dir, sentry: sentry, ends: e, runscLog: log,
		log: c.Log, done: make(chan struct{}), mux: mux,
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	go m.watch()
	return m, nil
}
