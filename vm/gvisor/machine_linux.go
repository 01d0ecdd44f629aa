package gvisor

import (
	"fmt"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
)

// A machine is one sandbox. It implements vm.Machine.
type machine struct {
	*life.Machine
	driver   *Driver
	config   vm.Config
	sentry   *process
	ends     *ends
	runscLog *life.Tail
	control  control
	// hostBound says whether the agent ends with its channel.
	hostBound bool
}

// watch waits for the sentry's end. It is PID 1 of its PID namespace, so by then the
// kernel has ended all its processes.
func (m *machine) watch() {
	err := m.sentry.wait()
	m.Ended(func() string {
		if err != nil {
			return "cannot watch it: " + err.Error()
		}
		return m.cause()
	})
}

// cause says what is known about an end that was not asked for.
func (m *machine) cause() string {
	cause := "its sentry ended"
	if m.driver.keeper.Cgroups.OOMKilled(m.ID()) {
		cause = "it ran out of memory"
	}
	if s := messages(m.runscLog.String()); s != "" {
		cause += ": " + s
	}
	if s := life.OneLine(readHead(m.ends.console, consoleSize)); s != "" {
		cause += fmt.Sprintf(": console: %q", s)
	}
	return cause
}

// Console implements vm.Machine.
func (m *machine) Console() []byte { return []byte(readHead(m.ends.console, consoleSize)) }
