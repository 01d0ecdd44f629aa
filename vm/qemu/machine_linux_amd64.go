package qemu

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

// settleTime is how long the end of QEMU may lag behind that of its channels.
const settleTime = 200 * time.Millisecond

// A machine is one running QEMU. It implements vm.Machine.
type machine struct {
	driver   *Driver
	id       string
	detached bool
	dir      *rundir.Dir
	process  *process
	mux      *vsock.Mux
	qmp      *qmp
	console  *tail // the end of what the guest wrote there
	said     *tail // and of QEMU's messages
	log      *slog.Logger
	done     chan struct{} // closed when QEMU is gone

	followed  chan struct{} // closed when the console has ended
	endFollow func()

	mu        sync.Mutex
	err       error         // why it ended; set before done is closed
	killed    bool          // by Destroy
	destroyed bool          // nothing is left
	destroy   chan struct{} // closed when the running attempt to destroy ends; nil without one
	failure   error         // of the last attempt
}

// ID implements vm.Machine.
func (m *machine) ID() string { return m.id }

// Done implements vm.Machine.
func (m *machine) Done() <-chan struct{} { return m.done }

// Err implements vm.Machine.
func (m *machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

func (m *machine) ended() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

func (m *machine) wasKilled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.killed
}

// Dial implements vm.Machine.
func (m *machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if m.wasKilled() || m.ended() {
		return nil, m.gone()
	}
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-m.done:
			cancel()
		case <-call.Done():
		}
	}()
	conn, err := m.mux.Dial(call, port)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if m.isGone() {
		return nil, m.gone()
	}
	return nil, fmt.Errorf("cannot dial port %d of machine %s: %w", port, m.id, err)
}

// isGone reports, after a failed dial, whether the machine has ended or is ending.
// The end of the channel is seen a little before that of QEMU.
func (m *machine) isGone() bool {
	select {
	case <-m.mux.Done():
	default:
		return m.wasKilled() || m.ended()
	}
	timer := time.NewTimer(settleTime)
	defer timer.Stop()
	select {
	case <-m.done:
		return true
	case <-timer.C:
		return m.wasKilled()
	}
}

func (m *machine) gone() error {
	if err := m.Err(); err != nil {
		return err
	}
	return fmt.Errorf("machine %s: %w: it was destroyed", m.id, vm.ErrGone)
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
	late := time.AfterFunc(settleTime, func() {
		m.endFollow()
		m.qmp.hangUp()
	})
	<-m.followed
	<-m.qmp.ended
	late.Stop()
	m.mu.Lock()
	if !m.killed {
		m.err = fmt.Errorf("machine %s: %w: %s", m.id, vm.ErrGone, m.causeOf(waitErr))
	}
	reason := m.err
	m.mu.Unlock()
	close(m.done)
	_ = m.mux.Close()
	m.endFollow()
	if reason != nil {
		m.log.Warn("machine ended", slog.String("machine", m.id), slog.Any("error", reason))
	}
}

func (m *machine) cause() string { return m.causeOf(nil) }

// causeOf says what is known about an end that was not asked for.
func (m *machine) causeOf(waitErr error) string {
	cause := "QEMU ended"
	if waitErr != nil {
		cause += ": " + waitErr.Error()
	}
	if m.driver.cgroups.OOMKilled(m.id) {
		cause = "it ran out of memory"
	}
	if reason := m.qmp.shutdownReason(); reason != "" {
		cause += fmt.Sprintf(": %.40q", reason)
	}
	if s := oneLine(m.said.String()); s != "" {
		cause += ": " + s
	}
	if s := oneLine(lastWords(m.console.String())); s != "" {
		cause += fmt.Sprintf(": console: %q", s)
	}
	return cause
}

// abandon ends a machine that was not made in the end.
func (m *machine) abandon() {
	m.mu.Lock()
	m.killed = true
	m.mu.Unlock()
	_ = m.process.kill()
	<-m.done
}

// Destroy implements vm.Machine. Of the callers that come together one attempt is
// shared; it goes on when their contexts end. The grace is a hung-up channel, which
// makes an agent that is bound to its host end and switch the machine off; a
// detached one is not, and gets none.
func (m *machine) Destroy(ctx context.Context, grace time.Duration) error {
	m.mu.Lock()
	if m.destroyed {
		m.mu.Unlock()
		return nil
	}
	attempt := m.destroy
	if attempt == nil {
		attempt = make(chan struct{})
		m.destroy, m.killed = attempt, true
		go m.tearDown(context.WithoutCancel(ctx), grace, attempt)
	}
	m.mu.Unlock()
	select {
	case <-attempt:
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for the end of machine %s: %w", m.id, ctx.Err())
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.destroyed {
		return nil
	}
	return m.failure
}

func (m *machine) tearDown(ctx context.Context, grace time.Duration, attempt chan struct{}) {
	err := m.remove(ctx, grace)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.destroyed, m.failure, m.destroy = err == nil, err, nil
	close(attempt)
}

func (m *machine) remove(ctx context.Context, grace time.Duration) error {
	_ = m.mux.Close()
	if grace > 0 && !m.detached && !m.ended() {
		timer := time.NewTimer(grace)
		select {
		case <-m.done:
		case <-timer.C:
		}
		timer.Stop()
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := m.process.kill(); err != nil {
		return err
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		return fmt.Errorf("cannot end machine %s: QEMU does not obey SIGKILL: %w", m.id, ctx.Err())
	}
	if _, err := m.driver.dismantle(ctx, m.dir); err != nil {
		return fmt.Errorf("cannot destroy machine %s: %w", m.id, err)
	}
	return nil
}
