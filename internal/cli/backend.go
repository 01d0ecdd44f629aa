package cli

import (
	"context"
	"log/slog"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm"
)

// A backend is what the commands need of the library underneath; tests bring one
// without a sandbox.
type backend interface {
	// Images opens the image store.
	Images() (*image.Store, error)
	// BuildDefault makes the default image, if it is not there already.
	BuildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions) (image.Info, error)
	// Kernels opens the store of guest kernels.
	Kernels() (*kernel.Store, error)
	// Snapshots opens the store of snapshots.
	Snapshots() (*snapstore.Store, error)
	// Bases opens what machines are kept in that have just started, if they are.
	Bases() (bouvet.Bases, error)
	// Logs is the directory of the consoles of past sandboxes.
	Logs() (string, error)
	// Driver readies a driver by its name; "auto" or empty is the best one here.
	Driver(ctx context.Context, name string, log *slog.Logger) (vm.Driver, error)
	// Try tries every driver by booting a sandbox, the best first.
	Try(ctx context.Context, log *slog.Logger) ([]local.Trial, error)
	// Sweep finds what killed runs have left of any driver's machines, and removes it.
	Sweep(ctx context.Context, remove bool, log *slog.Logger) ([]vm.Leftover, error)
}

// driverNames are the values of --driver.
var driverNames = local.DriverNames()

// A localBackend is the library as it works on this machine. Its zero value is
// what users get.
type localBackend struct {
	// images is a state directory whose images are used instead.
	images string
	// exe is the one of local.Options.
	exe string
}

func (b localBackend) Images() (*image.Store, error) {
	return local.Store(local.Options{StateDir: b.images})
}

func (localBackend) Kernels() (*kernel.Store, error) { return local.Kernels(local.Options{}) }

func (localBackend) Snapshots() (*snapstore.Store, error) { return local.Snapshots(local.Options{}) }

func (localBackend) Bases() (bouvet.Bases, error) { return local.Bases(local.Options{}) }

func (localBackend) Logs() (string, error) { return statedir.Logs("") }

func (localBackend) BuildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions) (image.Info, error) {
	return image.BuildDefault(ctx, store, opts)
}

func (b localBackend) Driver(ctx context.Context, name string, log *slog.Logger) (vm.Driver, error) {
	return local.Driver(ctx, local.Options{Driver: name, Exe: b.exe, Log: log})
}

func (b localBackend) Try(ctx context.Context, log *slog.Logger) ([]local.Trial, error) {
	return local.Try(ctx, local.Options{Exe: b.exe, Log: log})
}

func (b localBackend) Sweep(ctx context.Context, remove bool, log *slog.Logger) ([]vm.Leftover, error) {
	return local.Sweep(ctx, local.Options{Exe: b.exe, Log: log}, remove)
}

// newManager puts a manager on a driver and a store.
func newManager(ctx context.Context, driver vm.Driver, store *image.Store, bases bouvet.Bases, console func(bouvet.SandboxID, []byte), log *slog.Logger) (*bouvet.Manager, error) {
	return bouvet.NewManager(bouvet.ManagerOptions{
		Driver: driver, Images: local.Images(store), Bases: bases, Defaults: local.Defaults(ctx, driver, bouvet.Config{}), Console: console, Log: log,
	})
}
