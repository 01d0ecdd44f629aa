//go:build !linux

package gvisor

import (
	"context"
	"fmt"
	"runtime"

	"github.com/bouvet-run/bouvet/vm"
)

// Dispatch does nothing here: runsc is for Linux alone.
func Dispatch() {}

// Version is empty where runsc is not part of the binary.
func Version() string { return "" }

// A Driver does nothing on this operating system.
type Driver struct{}

var _ vm.Driver = (*Driver)(nil)

func unsupported() error {
	return fmt.Errorf("cannot use gVisor on %s: %w", runtime.GOOS, vm.ErrUnsupported)
}

// New fails with an error wrapping vm.ErrUnsupported.
func New(Options) (*Driver, error) { return nil, unsupported() }

// Name implements vm.Driver.
func (*Driver) Name() string { return Name }

// Features implements vm.Driver.
func (*Driver) Features() vm.Features { return vm.Features{Isolation: "gvisor"} }

// Create implements vm.Driver.
func (*Driver) Create(context.Context, vm.Config) (vm.Machine, error) { return nil, unsupported() }

// Restore implements vm.Driver.
func (*Driver) Restore(context.Context, vm.Config, string) (vm.Machine, error) {
	return nil, unsupported()
}

// Sweep implements vm.Driver.
func (*Driver) Sweep(context.Context, bool) ([]vm.Leftover, error) { return nil, nil }
