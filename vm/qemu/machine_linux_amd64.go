package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

// A machine is one running QEMU. It implements vm.Machine.
type machine struct {
	*life.Machine
	driver  *Driver
	config  vm.Config
	accel   string
	process *process
	qmp     *qmp
	channel *channel
	bulk    *channel    // the one below lane
	lane    *vsock.Lane // for what is much
	console *life.Tail  // the end of what the guest wrote there
	said    *life.Tail  // and of QEMU's messages

	files   *files        // the memory and the disk; closed when released is
	control chan struct{} // an element while somebody pauses, resumes or saves it
	paused  bool          // guarded by control
	// released is closed when the machine has ended and its files are closed.
	released chan struct{}

	followed  chan struct{} // closed when the console has ended
	endFollow func()
}

// follow collects what the guest writes to its console.
func (m *machine) follow(console net.Conn) {
	m.followed = make(chan struct{})
	m.endFollow = func() { _ = console.Close() }
	go func() {
		defer close(m.followed)
		_, _ = io.Copy(m.console, console)
	}()
}

// watch waits for QEMU's end.
func (m *machine) watch() {
	waitErr := m.process.cmd.Wait()
	// What it said at last is on its way. Nobody else holds the other ends, or should.
	late := time.AfterFunc(life.SettleTime, func() {
		m.endFollow()
		m.qmp.hangUp()
	})
	<-m.followed
	<-m.qmp.ended
	late.Stop()
	m.Ended(func() string { return m.causeOf(waitErr) })
	m.endFollow()
	_ = m.lane.Close()
	m.control <- struct{}{} // whoever has it sees the end
	m.files.close()
	close(m.released)
}

func (m *machine) cause() string { return m.causeOf(nil) }

// causeOf says what is known about an end that was not asked for.
func (m *machine) causeOf(waitErr error) string {
	cause := "QEMU ended"
	if waitErr != nil {
		cause += ": " + waitErr.Error()
	}
	if m.driver.keeper.Cgroups.OOMKilled(m.ID()) {
		cause = "it ran out of memory"
	}
	if reason := m.qmp.shutdownReason(); reason != "" {
		cause += fmt.Sprintf(": %.40q", reason)
	}
	if s := life.OneLine(m.said.String()); s != "" {
		cause += ": " + s
	}
	if s := life.OneLine(life.LastWords(m.console.String())); s != "" {
		cause += fmt.Sprintf(": console: %q", s)
	}
	return cause
}

// DialBulk implements vm.BulkDialer.
func (m *machine) DialBulk(ctx context.Context, port uint32) (net.Conn, error) {
	if err := m.Gone(); err != nil {
		return nil, err
	}
	conn, err := m.lane.Dial(ctx, port)
	if errors.Is(err, vsock.ErrLaneBusy) {
		err = fmt.Errorf("%w: %w", vm.ErrUnsupported, err)
	}
	return conn, err
}

// Console implements vm.Machine.
func (m *machine) Console() []byte { return m.console.Bytes() }
