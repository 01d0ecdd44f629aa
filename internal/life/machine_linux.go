package life

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

// SettleTime is how long the end of a machine's main process may lag behind that of
// its channels.
const SettleTime = 200 * time.Millisecond

// A Channel opens the streams to a machine's agent. *vsock.Mux is one.
type Channel interface {
	// Dial is vm.Machine's.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
	// Done is closed when the channel has ended; it may be a little ahead of the
	// machine.
	Done() <-chan struct{}
	// Close resets every stream. It is idempotent.
	Close() error
}

// A Parts is what a Machine is made of.
type Parts struct {
	// Config is what the machine was created with.
	Config *vm.Config
	// Keeper made the machine, and removes it.
	Keeper *Keeper
	// Dir is the machine's directory.
	Dir *rundir.Dir
	// Channel leads to the agent.
	Channel Channel
	// Kill ends the main process by force. One that has ended is fine.
	Kill func() error
	// Release closes what is left open when nothing of the machine is left. May be nil.
	Release func()
}

// A Machine is the part of a driver's machine that implements vm.Machine's ID, Done,
// Err, Dial and Destroy, to be embedded. The driver calls Ended once.
type Machine struct {
	p    Parts
	log  *slog.Logger
	done chan struct{} // closed when the main process is gone

	mu        sync.Mutex
	err       error         // why it ended; set before done is closed
	killed    bool          // by Destroy
	destroyed bool          // nothing is left
	destroy   chan struct{} // closed when the running attempt to destroy ends; nil without one
	failure   error         // of the last attempt
}

// NewMachine returns the Machine that is made of p. Until Ended is called it lives.
func NewMachine(p Parts) *Machine {
	m := &Machine{p: p, log: p.Config.Log, done: make(chan struct{})}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	return m
}

// Ended says that the main process is gone. It is to be called exactly once. cause
// tells what is known about an end that was not asked for, and is called only then.
func (m *Machine) Ended(cause func() string) {
	if !m.WasKilled() {
		// May take its time, so that nobody waits for the lock meanwhile.
		err := fmt.Errorf("machine %s: %w: %s", m.p.Config.ID, vm.ErrGone, cause())
		if m.p.Keeper.Cgroups.OOMKilled(m.p.Config.ID) {
			err = &outOfMemoryError{err}
		}
		m.mu.Lock()
		if !m.killed {
			m.err = err
		}
		m.mu.Unlock()
	}
	reason := m.Err()
	close(m.done)
	_ = m.p.Channel.Close()
	if reason != nil {
		m.log.Warn("machine ended", slog.String("machine", m.p.Config.ID), slog.Any("error", reason))
	}
}

// An outOfMemoryError is an end for want of memory, which its text says already.
type outOfMemoryError struct{ error }

func (e *outOfMemoryError) Unwrap() error { return e.error }

// Is implements what errors.Is asks for.
func (*outOfMemoryError) Is(target error) bool { return target == vm.ErrOutOfMemory }

// ID implements vm.Machine.
func (m *Machine) ID() string { return m.p.Config.ID }

// Dir is the machine's directory.
func (m *Machine) Dir() *rundir.Dir { return m.p.Dir }

// Log is the machine's log, never nil.
func (m *Machine) Log() *slog.Logger { return m.log }

// Done implements vm.Machine.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Err implements vm.Machine.
func (m *Machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// OOMKills is how many processes of the machine the host has killed because the machine
// took more memory than it may have.
func (m *Machine) OOMKills() int { return m.p.Keeper.Cgroups.OOMKills(m.p.Config.ID) }

// HasEnded reports whether the main process is gone.
func (m *Machine) HasEnded() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// WasKilled reports whether Destroy or Abandon was called.
func (m *Machine) WasKilled() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.killed
}

// Gone returns nil while the machine lives and nobody destroys it, and else an error
// wrapping vm.ErrGone.
func (m *Machine) Gone() error {
	if m.WasKilled() || m.HasEnded() {
		return m.gone()
	}
	return nil
}

func (m *Machine) gone() error {
	if err := m.Err(); err != nil {
		return err
	}
	return fmt.Errorf("machine %s: %w: it was destroyed", m.p.Config.ID, vm.ErrGone)
}

// Dial implements vm.Machine.
func (m *Machine) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if err := m.Gone(); err != nil {
		return nil, err
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
	conn, err := m.p.Channel.Dial(call, port)
	if err == nil {
		return conn, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if m.isGone() {
		return nil, m.gone()
	}
	return nil, fmt.Errorf("cannot dial port %d of machine %s: %w", port, m.p.Config.ID, err)
}

// isGone reports, after a failed dial, whether the machine has ended or is ending.
// The end of the channel is seen a little before that of the main process.
func (m *Machine) isGone() bool {
	select {
	case <-m.p.Channel.Done():
	default:
		return m.Gone() != nil
	}
	timer := time.NewTimer(SettleTime)
	defer timer.Stop()
	select {
	case <-m.done:
		return true
	case <-timer.C:
		return m.WasKilled()
	}
}

// Abandon ends a machine that was not made in the end. The Keeper removes it then.
func (m *Machine) Abandon() {
	m.mu.Lock()
	m.killed = true
	m.mu.Unlock()
	_ = m.p.Kill()
	<-m.done
}

// Destroy implements vm.Machine. Of the callers that come together one attempt is
// shared; it goes on when their contexts end. The grace is a closed channel, which
// makes an agent that is bound to its host end; a detached one is not, and gets none.
func (m *Machine) Destroy(ctx context.Context, grace time.Duration) error {
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
		return fmt.Errorf("cannot wait for the end of machine %s: %w", m.p.Config.ID, context.Cause(ctx))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.destroyed {
		return nil
	}
	return m.failure
}

func (m *Machine) tearDown(ctx context.Context, grace time.Duration, attempt chan struct{}) {
	err := m.remove(ctx, grace)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.destroyed, m.failure, m.destroy = err == nil, err, nil
	close(attempt)
}

func (m *Machine) remove(ctx context.Context, grace time.Duration) error {
	_ = m.p.Channel.Close()
	if grace > 0 && !m.p.Config.Detached && !m.HasEnded() {
		timer := time.NewTimer(grace)
		select {
		case <-m.done:
		case <-timer.C:
		}
		timer.Stop()
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := m.p.Kill(); err != nil {
		return err
	}
	select {
	case <-m.done:
	case <-ctx.Done():
		return fmt.Errorf("cannot end machine %s: it does not obey SIGKILL: %w", m.p.Config.ID, ctx.Err())
	}
	if _, err := m.p.Keeper.dismantle(ctx, m.p.Dir); err != nil {
		return fmt.Errorf("cannot destroy machine %s: %w", m.p.Config.ID, err)
	}
	if m.p.Release != nil {
		m.p.Release()
	}
	return nil
}
