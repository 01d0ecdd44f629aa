// Package local opens a bouvet.Manager that works on this machine, with the
// driver that is built in. A program that uses it is its own helper, so its main
// begins with Dispatch:
//
//	func main() {
//		local.Dispatch()
//		manager, err := local.Open(ctx, local.Options{})
//		...
//		sandbox, err := manager.CreateSandbox(ctx, bouvet.Config{})
//		...
//		result, err := sandbox.ExecuteCode(ctx, "python", "print(6 * 7)")
//
// The default image must be there: "bouvet image build-default" makes it, as does
// image.BuildDefault with the Store of this package.
package local

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/firecracker"
	"github.com/bouvet-run/bouvet/vm/gvisor"
	"github.com/bouvet-run/bouvet/vm/qemu"
)

// Options are the options of Open. The zero value is useful.
type Options struct {
	// StateDir holds images and machines: $BOUVET_STATE_DIR when empty, else
	// /var/lib/bouvet for root and a directory below the home of another user.
	StateDir string
	// MaxSandboxes bounds the sandboxes of the manager; 100 when 0, no bound when
	// negative.
	MaxSandboxes int
	// Driver is one of DriverNames: "auto" is for the best one here; empty means
	// $BOUVET_DRIVER, or else "auto".
	Driver string
	// Defaults fill the zero fields of each sandbox's Config.
	Defaults bouvet.Config
	// Exe is the program that becomes the sandbox's kernel, which calls Dispatch
	// first of all; the running one when empty. A program built with the race
	// detector cannot become one.
	Exe string
	// Log receives events; nil means none.
	Log *slog.Logger
}

// agentName is the name under which a program that calls Dispatch is an agent.
const agentName = "bouvet-agent"

// Dispatch turns the process into what it was started as, and then does not
// return: the kernel of a sandbox or the warden of one, or the agent of a guest. It must be the first
// call of main, and of TestMain.
func Dispatch() {
	gvisor.Dispatch()
	firecracker.Dispatch()
	// A build without an embedded agent serves as its own.
	if os.Args[0] == gvisor.AgentPath || filepath.Base(os.Args[0]) == agentName {
		os.Exit(agent.Main(agent.Program{}))
	}
}

// Open returns a manager of sandboxes on this machine. What programs that were
// killed have left behind is removed first. ctx bounds the call alone. The
// sandboxes end with the manager's Close, and with this process.
func Open(ctx context.Context, opts Options) (*bouvet.Manager, error) {
	driver, err := Driver(ctx, opts)
	if err != nil {
		return nil, err
	}
	store, err := Store(opts)
	if err != nil {
		return nil, err
	}
	snapshots, err := Snapshots(opts)
	if err != nil {
		return nil, err
	}
	bases, err := Bases(opts)
	if err != nil {
		return nil, err
	}
	if left, err := Sweep(ctx, opts, true); opts.Log != nil {
		logSweep(ctx, opts.Log, left, err)
	}
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("cannot open manager: %w", err)
	}
	return bouvet.NewManager(bouvet.ManagerOptions{
		Driver: driver, Images: Images(store), Snapshots: snapshots, Bases: bases, Defaults: Defaults(ctx, driver, opts.Defaults), MaxSandboxes: opts.MaxSandboxes, Log: opts.Log,
	})
}

// emulatedConnectTimeout bounds the wait for the agent of an emulated machine, which
// takes some seconds to start, and more where the host is busy.
const emulatedConnectTimeout = time.Minute

// Defaults fills those of c's fields that a driver has a default of its own for. For
// QEMU it finds out whether KVM works, if nobody has since the host's boot: that
// takes up to 3 s, bounded by ctx.
func Defaults(ctx context.Context, driver vm.Driver, c bouvet.Config) bouvet.Config {
	if d, ok := driver.(*qemu.Driver); ok && c.ConnectTimeout == 0 {
		if found, err := d.Acceleration(ctx); err != nil || found.Name != qemu.AccelKVM {
			c.ConnectTimeout = emulatedConnectTimeout
		}
	}
	return c
}

// DriverEnv names the environment variable with the default of Options.Driver.
const DriverEnv = "BOUVET_DRIVER"

// KernelEnv names the environment variable that names the guest kernel to use, as
// bouvet kernel ls shows it; without it the store chooses.
const KernelEnv = "BOUVET_KERNEL"

// DriverNames are the values of Options.Driver.
func DriverNames() []string { return []string{Auto, firecracker.Name, gvisor.Name, qemu.Name} }

// Driver returns the driver that Open uses. ctx bounds the search for one where that is
// to be "auto".
func Driver(ctx context.Context, opts Options) (vm.Driver, error) {
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("cannot choose driver: %w", err)
	}
	if opts.Driver == "" {
		opts.Driver = os.Getenv(DriverEnv)
	}
	switch opts.Driver {
	case "", Auto:
		return choose(ctx, opts)
	case gvisor.Name:
		return gvisorDriver(opts) //nolint:contextcheck // making the agent's image is short.
	case firecracker.Name:
		return firecrackerDriver(opts) //nolint:contextcheck // it asks programs for their versions, which is short.
	case qemu.Name:
		return qemuDriver(opts, os.Getenv(qemu.AccelEnv))
	default:
		return nil, fmt.Errorf("%w: there is no driver %.40q, use one of %s", bouvet.ErrInvalidConfig, opts.Driver, strings.Join(DriverNames(), ", "))
	}
}

func gvisorDriver(opts Options) (vm.Driver, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	dir, err := statedir.Agent(state)
	if err != nil {
		return nil, err
	}
	agentImage, err := guest.Image(dir)
	if err != nil {
		return nil, err
	}
	driver, err := gvisor.New(gvisor.Options{StateDir: state, AgentImage: agentImage, Exe: opts.Exe, Log: opts.Log})
	if err != nil {
		return nil, fmt.Errorf("cannot ready the gVisor driver: %w", err)
	}
	return driver, nil
}

func qemuDriver(opts Options, accel string) (vm.Driver, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	kernels, err := Kernels(opts)
	if err != nil {
		return nil, err
	}
	k, err := kernels.Find(os.Getenv(KernelEnv))
	if err != nil {
		return nil, fmt.Errorf("cannot ready the QEMU driver: %w", err)
	}
	agent, err := guest.Resolve()
	if err != nil {
		return nil, err
	}
	driver, err := qemu.New(qemu.Options{StateDir: state, Agent: agent.Binary, Kernel: k, Accel: accel, Log: opts.Log})
	if err != nil {
		return nil, fmt.Errorf("cannot ready the QEMU driver: %w", err)
	}
	return driver, nil
}

// Kernels returns the store of guest kernels that Open uses.
func Kernels(opts Options) (*kernel.Store, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	dir, err := statedir.Kernels(state)
	if err != nil {
		return nil, err
	}
	return kernel.Open(dir)
}

// Store returns the image store that Open uses.
func Store(opts Options) (*image.Store, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	dir, err := statedir.Images(state)
	if err != nil {
		return nil, err
	}
	return image.Open(dir)
}

// Snapshots returns the store of snapshots that Open uses.
func Snapshots(opts Options) (*snapstore.Store, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	dir, err := statedir.Snapshots(state)
	if err != nil {
		return nil, err
	}
	return snapstore.Open(dir)
}

// ColdBootEnv names the environment variable that, if it is not empty, has every machine
// start from nothing, instead of as a copy of one that has just started.
const ColdBootEnv = "BOUVET_COLD_BOOT"

// Bases returns what a Manager keeps machines in that have just started; nil if the
// environment says that there are to be none.
func Bases(opts Options) (bouvet.Bases, error) {
	if os.Getenv(ColdBootEnv) != "" {
		return nil, nil //nolint:nilnil // none is what was asked for.
	}
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	dir, err := statedir.Bases(state)
	if err != nil {
		return nil, err
	}
	return snapstore.OpenBases(dir)
}

func stateDir(opts Options) (string, error) {
	switch {
	case opts.StateDir == "":
		return statedir.Default()
	case !filepath.IsAbs(opts.StateDir):
		return "", fmt.Errorf("%w: state directory %.200q is not an absolute path", bouvet.ErrInvalidConfig, opts.StateDir)
	default:
		return opts.StateDir, nil
	}
}

// Images returns store as a Manager wants it.
func Images(store *image.Store) bouvet.Images { return images{store} }

type images struct{ store *image.Store }

// Acquire implements bouvet.Images.
func (i images) Acquire(ctx context.Context, name string) (bouvet.Image, error) {
	h, err := i.store.Acquire(ctx, name)
	if err != nil {
		return bouvet.Image{}, err
	}
	return bouvet.Image{Path: h.Path(), Digest: h.Digest(), Release: func() { _ = h.Release() }}, nil
}
