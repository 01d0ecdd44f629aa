package gvisor

import (
	"debug/elf"
	"fmt"

	"github.com/bouvet-run/bouvet/vm"
)

// checkExe refuses an executable that cannot run a sentry: that executes itself
// again in an empty root directory, where a dynamic loader is not to be found.
func checkExe(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("cannot use gVisor: cannot read executable %s: %w", path, err)
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("cannot use gVisor: executable %s is dynamically linked; build it with CGO_ENABLED=0 (make build does): %w",
				path, vm.ErrUnsupported)
		}
	}
	return nil
}
