package qemu

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

const (
	// overheadMiB is what QEMU needs on top of the guest's memory, and translatedMiB
	// what it needs for translated code under TCG.
	overheadMiB   = 96
	translatedMiB = 64
	// pidsMax bounds QEMU's threads.
	pidsMax = 512
	// startTimeout bounds the time from QEMU's start to its first answer.
	startTimeout = 20 * time.Second
	// consoleTail and stderrTail are how much of the guest's console and of QEMU's
	// messages is kept, in bytes.
	consoleTail = vm.MaxConsole
	stderrTail  = 8 << 10
)

// otherModules are those of a kernel that are of no use to a guest here.
var otherModules = []string{"vsock", "vmw_vsock_virtio_transport_common", "vmw_vsock_virtio_transport", "virtio_rng"}

// A Driver runs machines under QEMU. It implements vm.Driver.
type Driver struct {
	keeper    *life.Keeper
	program   string
	kernel    kernel.Kernel
	initramfs string
	accel     *accelerator
	log       *slog.Logger
}

var _ vm.Driver = (*Driver)(nil)

// New makes a driver. It looks at the host but starts nothing: whether a machine
// really boots is found out by booting one.
func New(o Options) (*Driver, error) {
	if !filepath.IsAbs(o.StateDir) {
		return nil, fmt.Errorf("cannot use QEMU: state directory %q must be an absolute path", o.StateDir)
	}
	if o.Program == "" {
		o.Program = Program
	}
	program, err := exec.LookPath(o.Program)
	if err != nil {
		return nil, fmt.Errorf("cannot use QEMU: %w: %w; install it with apt-get install %s", vm.ErrUnsupported, err, Package)
	}
	accel, err := newAccelerator(program, o.StateDir, o.Accel)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		accel: accel,
		keeper: &life.Keeper{
			Driver: Name, Base: filepath.Join(o.StateDir, "machines"),
			Cgroups: cgroup.Find(o.CgroupParent), Mark: nameArg,
		},
		program: program,
		kernel:  o.Kernel,
		log:     o.Log,
	}
	if d.initramfs, err = bootfiles.Initramfs(filepath.Join(o.StateDir, "initramfs"), o.Agent, &o.Kernel, otherModules...); err != nil {
		return nil, fmt.Errorf("cannot make initramfs: %w", err)
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
		Isolation:   "microvm",
		MemoryLimit: true, // a machine has no more than it was given
		CPULimit:    d.keeper.Cgroups.Limits("cpu"),
		Detached:    true,
	}
}

// Create implements vm.Driver.
func (d *Driver) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.MemoryMiB < MinMemoryMiB {
		return nil, fmt.Errorf("%w: memory of %d MiB: a guest's own kernel needs at least %d", vm.ErrInvalidConfig, c.MemoryMiB, MinMemoryMiB)
	}
	accel, err := d.Acceleration(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot create machine %s: %w", c.ID, err)
	}
	files, err := d.openFiles(&c)
	if err != nil {
		return nil, err
	}
	defer files.close()
	return d.keeper.Make(ctx, &c, func(dir *rundir.Dir) (vm.Machine, error) { return d.create(ctx, &c, accel.Name, files, dir) })
}

// Sweep implements vm.Driver. Detached machines that run are no leftovers.
func (d *Driver) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	return d.keeper.Sweep(ctx, remove)
}

// files are what QEMU reads, opened by us.
type files struct{ kernel, initramfs, image *os.File }

func (f *files) close() { closeFiles(f.kernel, f.initramfs, f.image) }

func (d *Driver) openFiles(c *vm.Config) (_ *files, err error) {
	f := &files{}
	defer func() {
		if err != nil {
			f.close()
		}
	}()
	if f.image, err = os.Open(c.Image); err != nil {
		return nil, fmt.Errorf("cannot use image: %w", err)
	}
	info, err := f.image.Stat()
	if err != nil {
		return nil, fmt.Errorf("cannot use image: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: image %s is not a regular file", vm.ErrInvalidConfig, c.Image)
	}
	if f.kernel, err = os.Open(d.kernel.ImagePath()); err != nil {
		return nil, fmt.Errorf("cannot use guest kernel: %w; get one with bouvet kernel fetch", err)
	}
	if f.initramfs, err = os.Open(d.initramfs); err != nil {
		return nil, fmt.Errorf("cannot use initramfs: %w", err)
	}
	return f, nil
}

func (d *Driver) create(ctx context.Context, c *vm.Config, accel string, f *files, dir *rundir.Dir) (_ vm.Machine, err error) {
	overhead := overheadMiB
	if accel == AccelTCG {
		overhead += translatedMiB
	}
	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overhead) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	if err := d.keeper.Cgroups.Create(c.ID, limits); err != nil {
		return nil, err
	}
	h, g, err := makeEnds()
	if err != nil {
		return nil, err
	}
	m := &machine{driver: d, console: life.NewTail(consoleTail), said: life.NewTail(stderrTail)}
	p, err := d.start(ctx, c, accel, f, g, dir.Path(), m.said)
	g.close()
	if err != nil {
		h.close()
		return nil, err
	}
	// From here on all ends with the machine. The session's first words wait in the
	// channel when the agent comes up.
	m.process, m.qmp = p, newQMP(h.qmp)
	m.Machine = life.NewMachine(life.Parts{Config: c, Keeper: d.keeper, Dir: dir, Channel: vsock.NewMux(h.channel), Kill: p.kill})
	m.follow(h.console)
	go m.watch()
	defer func() {
		if err != nil {
			m.Abandon()
		}
	}()
	if err := d.release(ctx, m, h); err != nil {
		return nil, err
	}
	main, err := rundir.Identify(p.cmd.Process.Pid)
	if err != nil {
		return nil, fmt.Errorf("QEMU ended: %w: %s", err, m.cause())
	}
	if err := dir.Update(func(r *rundir.Record) { r.State, r.Main = rundir.StateRunning, main }); err != nil {
		return nil, err
	}
	return m, ctx.Err()
}

// release puts QEMU, which waits at its gate, under its limits, opens the gate and
// waits until it answers.
func (d *Driver) release(ctx context.Context, m *machine, h *hostEnds) error {
	err := d.keeper.Cgroups.Enter(m.ID(), m.process.cmd.Process.Pid)
	if closeErr := h.gate.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		start, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		err = m.qmp.negotiate(start)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	// If it has ended, that is why.
	settled := time.NewTimer(life.SettleTime)
	defer settled.Stop()
	select {
	case <-m.Done():
		return fmt.Errorf("QEMU did not start: %s", m.cause())
	case <-settled.C:
		return fmt.Errorf("QEMU does not answer: %w", err)
	}
}
