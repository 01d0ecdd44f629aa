package firecracker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/disk"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// overheadMiB is what Firecracker and the warden need on top of the guest's memory.
	overheadMiB = 64
	// pidsMax bounds the threads of both.
	pidsMax = 256
	// askTimeout bounds a program that is asked for its version.
	askTimeout = 5 * time.Second
	// guardInterval is how often a machine's Firecracker is asked whether it lives.
	guardInterval = 5 * time.Second
	// consoleTail and saidTail are how much of the guest's console and of Firecracker's
	// messages is kept, in bytes.
	consoleTail = vm.MaxConsole
	saidTail    = 8 << 10
)

// vsockModule is the module that the agent needs where vsock is not built in.
const vsockModule = "vmw_vsock_virtio_transport"

// A Driver runs machines under Firecracker. It implements vm.Driver.
type Driver struct {
	keeper     *life.Keeper
	program    string
	jailerPath string
	exe        string
	version    Version
	format     string // of snapshots
	kernel     kernel.Kernel
	initramfs  string
	disks      disk.Maker
	log        *slog.Logger
	guardEvery time.Duration
}

var _ vm.Driver = (*Driver)(nil)

// New makes a driver. It asks the programs for their versions; whether a machine
// really boots is found out by booting one. An error wraps vm.ErrUnsupported where
// this host cannot run Firecracker, and names the remedy.
func New(o Options) (*Driver, error) {
	d, err := newDriver(o)
	if err != nil {
		return nil, fmt.Errorf("cannot use Firecracker: %w", err)
	}
	return d, nil
}

func newDriver(o Options) (*Driver, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: its jailer needs root; run as root, or choose another driver", vm.ErrUnsupported)
	}
	if err := checkStateDir(o.StateDir); err != nil {
		return nil, err
	}
	if !o.Kernel.Manifest.Has(kernel.Vsock) && !bootfiles.HasModule(&o.Kernel, vsockModule) {
		return nil, fmt.Errorf("%w: the guest kernel %s has no vsock that is known of; get one with bouvet kernel fetch", vm.ErrUnsupported, o.Kernel.Manifest.Release)
	}
	d := &Driver{
		keeper: &life.Keeper{
			Driver: Name, Base: filepath.Join(o.StateDir, "machines"),
			Cgroups: cgroup.Find(o.CgroupParent), Mark: apiSocket,
		},
		disks: disk.Maker{Dir: filepath.Join(o.StateDir, "disks")},
		exe:   o.Exe, kernel: o.Kernel, log: o.Log, guardEvery: guardInterval,
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if err := d.findPrograms(&o); err != nil {
		return nil, err
	}
	var err error
	if d.initramfs, err = bootfiles.Initramfs(filepath.Join(o.StateDir, "initramfs"), o.Agent, &o.Kernel, "virtio_console"); err != nil {
		return nil, fmt.Errorf("cannot make initramfs: %w", err)
	}
	return d, nil
}

// findPrograms finds Firecracker and its jailer, of one release that is not refused.
func (d *Driver) findPrograms(o *Options) (err error) {
	if d.exe == "" {
		if d.exe, err = os.Executable(); err != nil {
			return err
		}
	}
	if d.program, err = find(o.Program, Program); err != nil {
		return err
	}
	if d.jailerPath, err = find(o.Jailer, JailerProgram); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	if d.version, err = askVersion(ctx, d.program); err != nil {
		return err
	}
	if err := d.version.Check(); err != nil {
		return err
	}
	jailer, err := askVersion(ctx, d.jailerPath)
	if err != nil {
		return err
	}
	if jailer != d.version {
		return fmt.Errorf("%w: Firecracker is %v and its jailer %v; install both of one release", vm.ErrUnsupported, d.version, jailer)
	}
	format, err := ask(ctx, d.program, "--snapshot-version")
	if err != nil {
		return err
	}
	v, err := ParseVersion(format)
	if err != nil {
		return err
	}
	d.format = v.String()
	return nil
}

// find is the path of a program, without links: the jail is named after it.
func find(path, name string) (string, error) {
	if path == "" {
		path = name
	}
	found, err := exec.LookPath(path)
	if err == nil {
		found, err = filepath.EvalSymlinks(found)
	}
	if err == nil {
		found, err = filepath.Abs(found)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w; install a release of Firecracker with its jailer", vm.ErrUnsupported, err)
	}
	return found, nil
}

func askVersion(ctx context.Context, program string) (Version, error) {
	out, err := ask(ctx, program, "--version")
	if err != nil {
		return Version{}, err
	}
	return ParseVersion(out)
}

// ask runs a program that tells something of itself.
func ask(ctx context.Context, program, flag string) (string, error) {
	said := life.NewTail(saidTail)
	cmd := exec.CommandContext(ctx, program, flag)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.WaitDelay = []string{}, "/", said, outputDelay
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("cannot run %s %s: %w", program, flag, err)
	}
	return said.String(), nil
}

// checkStateDir refuses a directory in whose place another user could put something:
// what the jailer is given is trusted.
func checkStateDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("state directory %q must be an absolute path", dir)
	}
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		switch {
		case errors.Is(err, os.ErrNotExist):
			continue // to be made; the root exists
		case err != nil:
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if ok && st.Uid != 0 {
			return fmt.Errorf("state directory is not safe: %s belongs to user %d, not to root", dir, st.Uid)
		}
		if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
			return fmt.Errorf("state directory is not safe: others may write to %s; remove that with chmod go-w", dir)
		}
		if dir == filepath.Dir(dir) {
			return nil
		}
	}
}

// Name implements vm.Driver.
func (*Driver) Name() string { return Name }

// Version is the release of Firecracker that the driver runs.
func (d *Driver) Version() Version { return d.version }

// Features implements vm.Driver.
func (d *Driver) Features() vm.Features {
	return vm.Features{
		Isolation:   "microvm",
		MemoryLimit: true, // a machine has no more than it was given
		CPULimit:    d.keeper.Cgroups.Limits("cpu"),
		Pause:       d.version.pauses(),
		Snapshot:    d.version.pauses(),
		// Firecracker resets the guest's vsock whenever it saves a machine.
		SnapshotResets: true,
		Disk:           true,
		Detached:       true,
	}
}

// Sweep implements vm.Driver. Detached machines that run are no leftovers.
func (d *Driver) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	return d.keeper.Sweep(ctx, remove)
}

// Create implements vm.Driver.
func (d *Driver) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := check(&c); err != nil {
		return nil, err
	}
	p := &plan{
		files: []file{{d.kernel.ImagePath(), jailKernel}, {d.initramfs, jailInitramfs}, {c.Image, jailImage}},
		begin: d.boot,
	}
	if c.DiskMiB > 0 {
		p.disk = func(ctx context.Context, path string) (*os.File, error) { return d.disks.New(ctx, path, c.DiskMiB) }
	}
	return d.make(ctx, &c, p)
}

// check refuses what cannot be.
func check(c *vm.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	switch {
	case c.MemoryMiB < MinMemoryMiB:
		return fmt.Errorf("%w: memory of %d MiB: a guest's own kernel needs at least %d", vm.ErrInvalidConfig, c.MemoryMiB, MinMemoryMiB)
	case c.VCPUs > MaxVCPUs:
		return fmt.Errorf("%w: %d vCPUs are more than Firecracker's %d", vm.ErrInvalidConfig, c.VCPUs, MaxVCPUs)
	}
	return nil
}

// A file of the host is to be seen in a jail under that name.
type file struct{ path, name string }

// A plan is what a machine is made of.
type plan struct {
	// files are what it sees.
	files []file
	// disk makes the disk of its writable layer at path, unless that is in its memory.
	disk func(ctx context.Context, path string) (*os.File, error)
	// begin starts its guest.
	begin func(ctx context.Context, m *machine) error
}

func (d *Driver) make(ctx context.Context, c *vm.Config, p *plan) (vm.Machine, error) {
	return d.keeper.Make(ctx, c, func(dir *rundir.Dir) (vm.Machine, error) { return d.build(ctx, c, p, dir) })
}

func (d *Driver) build(ctx context.Context, c *vm.Config, p *plan, dir *rundir.Dir) (_ vm.Machine, err error) {
	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overheadMiB) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	if err := d.keeper.Cgroups.Create(c.ID, limits); err != nil {
		return nil, err
	}
	j, err := makeJail(dir, d.program, life.User(c.ID))
	if err != nil {
		return nil, err
	}
	o := &orders{Command: d.jailer(j)}
	if o.Binds, err = j.binds(ctx, p, dir.Join(diskFile)); err != nil {
		j.close()
		return nil, err
	}
	m, err := d.newMachine(ctx, c, j, dir)
	if err != nil {
		j.close()
		return nil, err
	}
	// From here on all ends with the machine.
	defer func() {
		if err != nil {
			m.Abandon()
			j.close()
		}
	}()
	if err := d.release(ctx, m, o, p.begin); err != nil {
		return nil, err
	}
	main, err := rundir.Identify(m.process.cmd.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("cannot start Firecracker: %w: %s", err, m.cause())
	}
	if err := dir.Update(func(r *rundir.Record) { r.State, r.Main = rundir.StateRunning, main }); err != nil {
		return nil, err
	}
	go m.guard(d.guardEvery) //nolint:contextcheck // it lives as long as the machine.
	return m, context.Cause(ctx)
}

// release puts the warden under its limits, gives it its orders and has begin start
// the guest.
func (d *Driver) release(ctx context.Context, m *machine, o *orders, begin func(ctx context.Context, m *machine) error) error {
	err := d.keeper.Cgroups.Enter(m.ID(), m.process.cmd.Process.Pid)
	if err == nil {
		err = m.process.command(o)
	}
	if err == nil {
		err = d.greet(ctx, m)
	}
	if err == nil {
		err = begin(ctx, m)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case m.settled():
		return fmt.Errorf("cannot start Firecracker: %w: %s", err, m.cause())
	}
	return err
}

// greet waits for Firecracker and makes sure that it is the one that was asked for
// its version before.
func (d *Driver) greet(ctx context.Context, m *machine) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() { // there is nobody to wait for when it has ended
		select {
		case <-m.Done():
			cancel(vm.ErrGone)
		case <-ctx.Done():
		}
	}()
	v, err := m.api.version(ctx)
	if err != nil {
		return err
	}
	if v != d.version {
		return fmt.Errorf("%w: Firecracker is %v now and was %v before; start anew", vm.ErrUnsupported, v, d.version)
	}
	return m.api.put(ctx, pathLogger, &logger{Level: levelOfMessages, ShowLevel: true})
}
