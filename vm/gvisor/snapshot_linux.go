package gvisor

import (
	"context"

	"github.com/bouvet-run/bouvet/vm"
)

// Restore implements vm.Driver.
func (d *Driver) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	return nil, vm.ErrUnsupported
}

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return vm.ErrUnsupported }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return vm.ErrUnsupported }

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(ctx context.Context, dir string) error { return vm.ErrUnsupported }
