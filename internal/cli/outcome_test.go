package cli

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// T02: whoever is told that memory ran out learns what to do about it.
func TestOutOfMemory(t *testing.T) {
	for name, tt := range map[string]struct {
		exit bouvet.ExitError
		code int
	}{
		"the command":    {bouvet.ExitError{Code: -1, Signal: syscall.SIGKILL, OOMKilled: true}, 137},
		"a shell's":      {bouvet.ExitError{Code: 137, OOMKilled: true}, 137},
		"something else": {bouvet.ExitError{Code: -1, Signal: syscall.SIGKILL}, 137},
	} {
		o, err := endOf(t.Context(), &bouvet.Cmd{}, fmt.Errorf("it ended: %w", &tt.exit))
		if err != nil || o.ExitCode != tt.code || o.OOMKilled != tt.exit.OOMKilled || (o.message != nil) != tt.exit.OOMKilled {
			t.Errorf("%s: got %+v, %v", name, o, err)
			continue
		}
		if !tt.exit.OOMKilled {
			continue
		}
		if e := describe(o.message); e.Kind != kindOutOfMemory || e.Remedy != remedyMemory {
			t.Errorf("%s: got %+v", name, e)
		}
	}
	gone := fmt.Errorf("%w: it is", vm.ErrGone)
	if e := describe(errors.Join(vm.ErrOutOfMemory, gone)); e.Kind != kindMachineGone || e.Remedy != remedyMemory {
		t.Errorf("the machine: got %+v", e)
	}
}
