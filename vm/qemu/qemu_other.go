//go:build !linux || !amd64

package qemu

import (
	"context"
	"fmt"
	"runtime"

	"github.com/bouvet-run/bouvet/vm"
)

// A Driver does nothing on this platform.
type Driver struct{}

var _ vm.Driver = (*Driver)(nil)

func unsupported() error {
	return fmt.Errorf("cannot use QEMU on %s/%s: %w", runtime.GOOS, runtime.GOARCH, vm.ErrUnsupported)
}

// New fails with an error wrapping vm.ErrUnsupported.
func New(Options) (*Driver, error) { return nil, unsupported() }

// Name implements vm.Driver.
func (*Driver) Name() string { return Name }

// Features implements vm.Driver.
func (*Driver) Features() vm.Features { return vm.Features{Isolation: "microvm"} }

// Create implements vm.Driver.
func (*Driver) Create(context.Context, vm.Config) (vm.Machine, error) { return nil, unsupported() }

// Restore implements vm.Driver.
func (*Driver) Restore(context.Context, vm.Config, string) (vm.Machine, error) {
	return nil, unsupported()
}

// Sweep implements vm.Driver.
func (*Driver) Sweep(context.Context, bool) ([]vm.Leftover, error) { return nil, nil }

// Acceleration fails with an error wrapping vm.ErrUnsupported.
func (*Driver) Acceleration(context.Context) (Acceleration, error) {
	return Acceleration{}, unsupported()
}
