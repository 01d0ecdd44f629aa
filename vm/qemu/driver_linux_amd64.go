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
	"github.com/bouvet-run/bouvet/internal/disk"
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
	rams      rams
	disks     disk.Maker
	qemu      programVersion
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
		disks:   disk.Maker{Dir: filepath.Join(o.StateDir, "disks")},
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
		Pause:       true,
		Snapshot:    true,
		Disk:        true,
		Detached:    true,
		Base:        d.bootDigest(),
	}
}

// Create implements vm.Driver.
func (d *Driver) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if err := validate(&c); err != nil {
		return nil, err
	}
	accel, err := d.Acceleration(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot create machine %s: %w", c.ID, err)
	}
	f := &files{}
	if err := d.openFiles(f, &c); err != nil {
		f.close()
		return nil, err
	}
	return d.make(ctx, &c, accel.Name, f, func(dir *rundir.Dir) (err error) {
		if c.DiskMiB > 0 {
			if f.disk, err = d.disks.New(ctx, dir.Join(diskName), c.DiskMiB); err != nil {
				return err
			}
		}
		f.ram, err = newRAM(int64(c.MemoryMiB) << 20)
		return err
	})
}

func validate(c *vm.Config) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if c.MemoryMiB < MinMemoryMiB {
		return fmt.Errorf("%w: memory of %d MiB: a guest's own kernel needs at least %d", vm.ErrInvalidConfig, c.MemoryMiB, MinMemoryMiB)
	}
	return nil
}

// make makes a machine of f, which it takes over and prepare completes.
func (d *Driver) make(ctx context.Context, c *vm.Config, accel string, f *files, prepare func(dir *rundir.Dir) error) (vm.Machine, error) {
	taken := false
	defer func() {
		if !taken {
			f.close()
		}
	}()
	return d.keeper.Make(ctx, c, func(dir *rundir.Dir) (vm.Machine, error) {
		if err := prepare(dir); err != nil {
			return nil, err
		}
		m, started, err := d.create(ctx, c, accel, f, dir)
		taken = started
		if err != nil {
			return nil, err
		}
		return m, nil
	})
}

// Sweep implements vm.Driver. Detached machines that run are no leftovers.
func (d *Driver) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	return d.keeper.Sweep(ctx, remove)
}

// files are what QEMU reads, and writes where that is the machine's own: opened by us.
type files struct {
	kernel, initramfs, image *os.File
	// ram is the memory, disk the writable layer's, state what is to be restored. The
	// last two may be nil.
	ram, disk, state *os.File
	// unshare gives ram back, if it is not the machine's own.
	unshare func()
}

// closeRead closes what QEMU alone goes on using.
func (f *files) closeRead() { closeFiles(f.kernel, f.initramfs, f.image, f.state) }

func (f *files) close() {
	f.closeRead()
	closeFiles(f.disk)
	if f.unshare != nil {
		f.unshare()
	} else {
		closeFiles(f.ram)
	}
}

func openImage(c *vm.Config) (*os.File, error) {
	f, err := os.Open(c.Image)
	if err != nil {
		return nil, fmt.Errorf("cannot use image: %w", err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%w: image %s is not a regular file", vm.ErrInvalidConfig, c.Image)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot use image: %w", err)
	}
	return f, nil
}

func (d *Driver) openFiles(f *files, c *vm.Config) (err error) {
	if f.image, err = openImage(c); err != nil {
		return err
	}
	if f.kernel, err = os.Open(d.kernel.ImagePath()); err != nil {
		return fmt.Errorf("cannot use guest kernel: %w; get one with bouvet kernel fetch", err)
	}
	if f.initramfs, err = os.Open(d.initramfs); err != nil {
		return fmt.Errorf("cannot use initramfs: %w", err)
	}
	return nil
}

// create starts a machine. If started, f is the machine's, which ends if there is an
// error.
func (d *Driver) create(ctx context.Context, c *vm.Config, accel string, f *files, dir *rundir.Dir) (_ vm.Machine, started bool, err error) {
	overhead := overheadMiB
	if accel == AccelTCG {
		overhead += translatedMiB
	}
	if f.unshare != nil {
		// For a page that it changes, a machine may have to pay for the original, too.
		overhead += c.MemoryMiB
	}
	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overhead) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	if err := d.keeper.Cgroups.Create(c.ID, limits); err != nil {
		return nil, false, err
	}
	h, g, err := makeEnds()
	if err != nil {
		return nil, false, err
	}
	m := &machine{
		driver: d, config: *c, accel: accel, console: life.NewTail(consoleTail), said: life.NewTail(stderrTail),
		files: f, control: make(chan struct{}, 1), released: make(chan struct{}),
	}
	if m.channel, err = newChannel(h.channel); err == nil {
		m.bulk, err = newChannel(h.lane)
	}
	if err != nil {
		g.close()
		h.close()
		return nil, false, err
	}
	m.bulk.reads = true
	m.lane = vsock.NewLane(m.bulk)
	p, err := d.start(ctx, c, accel, f, g, dir.Path(), m.said)
	g.close()
	if err != nil {
		h.close()
		return nil, false, err
	}
	f.closeRead()
	// From here on all ends with the machine. The session's first words wait in the
	// channel when the agent comes up.
	newMux := vsock.NewFirstMux
	if f.state != nil {
		newMux = vsock.NewMux // the guest still serves the session of its original
	}
	m.process, m.qmp = p, newQMP(h.qmp)
	m.Machine = life.NewMachine(life.Parts{
		Config: c, Keeper: d.keeper, Dir: dir, Channel: newMux(m.channel), Kill: p.kill,
		Release: func() { <-m.released },
	})
	m.follow(h.console)
	go m.watch()
	defer func() {
		if err != nil {
			m.Abandon()
			<-m.released
		}
	}()
	if err := d.release(ctx, m, h); err != nil {
		return nil, true, err
	}
	if f.state != nil {
		if err := m.load(ctx); err != nil {
			return nil, true, err
		}
	}
	main, err := rundir.Identify(p.cmd.Process.Pid)
	if err != nil {
		return nil, true, fmt.Errorf("QEMU ended: %w: %s", err, m.cause())
	}
	if err := dir.Update(func(r *rundir.Record) { r.State, r.Main = rundir.StateRunning, main }); err != nil {
		return nil, true, err
	}
	return m, true, ctx.Err()
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
	if old := d.tooOld(ctx); old != nil {
		return old
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
