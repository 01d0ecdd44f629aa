package cli

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/gvisor"
)

// A backend is what the commands need of the library underneath; tests bring one
// without a sandbox.
type backend interface {
	// Images opens the image store.
	Images() (*image.Store, error)
	// BuildDefault makes the default image, if it is not there already.
	BuildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions) (image.Info, error)
	// Driver readies a driver by its name; "auto" or empty is the best one here.
	Driver(name string, log *slog.Logger) (vm.Driver, error)
}

// driverNames are the values of --driver.
var driverNames = []string{"auto", gvisor.Name}

// A localBackend is the library as it works on this machine.
type localBackend struct{}

func (localBackend) Images() (*image.Store, error) {
	dir, err := statedir.Images("")
	if err != nil {
		return nil, err
	}
	return image.Open(dir)
}

func (localBackend) BuildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions) (image.Info, error) {
	return image.BuildDefault(ctx, store, opts)
}

func (localBackend) Driver(_ string, log *slog.Logger) (vm.Driver, error) {
	state, err := statedir.Default()
	if err != nil {
		return nil, err
	}
	agentDir, err := statedir.Agent(state)
	if err != nil {
		return nil, err
	}
	agent, err := guest.Image(agentDir)
	if err != nil {
		return nil, err
	}
	driver, err := gvisor.New(gvisor.Options{StateDir: state, AgentImage: agent, Log: log})
	if err != nil {
		return nil, fmt.Errorf("cannot ready the gVisor driver: %w", err)
	}
	return driver, nil
}

// newManager puts a manager on a driver and a store.
func newManager(driver vm.Driver, store *image.Store, log *slog.Logger) (*bouvet.Manager, error) {
	return bouvet.NewManager(bouvet.ManagerOptions{Driver: driver, Images: storeImages{store}, Log: log})
}

// storeImages is a store as a Manager wants it.
type storeImages struct{ store *image.Store }

// Acquire implements bouvet.Images.
func (s storeImages) Acquire(ctx context.Context, name string) (string, func(), error) {
	h, err := s.store.Acquire(ctx, name)
	if err != nil {
		return "", nil, err
	}
	return h.Path(), func() { _ = h.Release() }, nil
}
