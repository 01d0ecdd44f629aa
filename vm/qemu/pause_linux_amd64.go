package qemu

import (
	"context"
	"fmt"
	"time"

	"github.com/bouvet-run/bouvet/internal/life"
)

// controlTimeout bounds what QEMU is told to do that takes no time.
const controlTimeout = 10 * time.Second

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.setPaused(ctx, true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.setPaused(ctx, false) }

func (m *machine) setPaused(ctx context.Context, paused bool) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	if err := m.take(ctx); err != nil {
		return fmt.Errorf("cannot %s machine %s: %w", verb, m.ID(), err)
	}
	// What QEMU was told it does, so the answer is waited for, but not by a caller
	// whose context has ended.
	result := make(chan error, 1)
	go func() {
		defer m.give()
		result <- m.setPausedLocked(context.WithoutCancel(ctx), paused)
	}()
	select {
	case err := <-result:
		if err != nil {
			return fmt.Errorf("cannot %s machine %s: %w", verb, m.ID(), err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot wait for machine %s to %s: %w", m.ID(), verb, context.Cause(ctx))
	}
}

func (m *machine) setPausedLocked(ctx context.Context, paused bool) error {
	if m.paused == paused {
		return nil
	}
	command := "cont"
	if paused {
		command = "stop"
	}
	if err := m.tell(ctx, command, nil); err != nil {
		return err
	}
	m.paused = paused
	return nil
}

// take begins what one caller at a time may do with a machine that has not ended. If
// it succeeds, give ends that.
func (m *machine) take(ctx context.Context) error {
	if err := m.Gone(); err != nil {
		return err
	}
	select {
	case m.control <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.Done():
		return m.Gone()
	}
	if err := m.Gone(); err != nil {
		m.give()
		return err
	}
	return nil
}

func (m *machine) give() { <-m.control }

// tell lets QEMU obey a command, in bounded time.
func (m *machine) tell(ctx context.Context, command string, arguments any) error {
	ctx, cancel := context.WithTimeout(ctx, controlTimeout)
	defer cancel()
	return m.orGone(m.qmp.execute(ctx, command, arguments))
}

// orGone returns err, or that the machine is gone if that is why.
func (m *machine) orGone(err error) error {
	if err == nil || !isClosed(m.qmp.ended) {
		return err
	}
	// QEMU says no more: it has ended, or does now.
	late := time.NewTimer(life.SettleTime)
	defer late.Stop()
	select {
	case <-m.Done():
	case <-late.C:
	}
	if gone := m.Gone(); gone != nil {
		return gone
	}
	return err
}
