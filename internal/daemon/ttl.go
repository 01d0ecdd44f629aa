package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

// retryPause is when the pause of a sandbox whose time is over is tried again.
const retryPause = time.Minute

// armLocked sets the end of the box's time. Timers go by the monotonic clock, so that a
// jump of the other ends nothing (T37).
func (b *box) armLocked(end time.Time) {
	d := max(time.Until(end), 0)
	b.deadline = time.Now().Add(d) // end may be by the wall clock
	if b.timer != nil {
		b.timer.Stop()
	}
	b.timer = time.AfterFunc(d, b.expire)
}

func (b *box) disarmLocked() {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
}

// errNotDue means that the time of a sandbox was prolonged meanwhile.
var errNotDue = errors.New("not due")

// expire ends or pauses a sandbox whose time is over.
func (b *box) expire() {
	b.s.mu.Lock()
	closed := b.s.draining
	b.s.mu.Unlock()
	b.mu.Lock()
	due := !time.Now().Before(b.deadline) && b.rec.state != store.Paused && !b.doomed
	pauses := b.rec.Sandbox.OnTimeout == TimeoutPauses
	memory := b.rec.Sandbox.PauseMemory
	b.mu.Unlock()
	switch {
	case !due || closed:
	case !pauses:
		b.s.endLater(b, "killed", byDaemon, "its time was over")
	default:
		b.s.background.run(func() { b.pauseInTime(memory) })
	}
}

// pauseInTime pauses a sandbox because its time is over, and tries again later if that
// fails: its owner counts on what it holds.
func (b *box) pauseInTime(memory bool) {
	err := b.pause(b.s.ctx, memory, byDaemon, "its time was over", false, func() error {
		if time.Now().Before(b.deadline) {
			return errNotDue
		}
		return nil
	})
	if err == nil || errors.Is(err, errNotDue) || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) || b.s.ctx.Err() != nil {
		return
	}
	b.s.log.LogAttrs(b.s.ctx, slog.LevelWarn, "cannot pause sandbox whose time is over", slog.String("id", string(b.id)), slog.Any("error", err))
	b.s.Log(b.id, "timeout", byDaemon, "cannot be paused: "+err.Error())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil && b.machine != nil && !time.Now().Before(b.deadline) {
		b.timer.Reset(retryPause)
	}
}

// SetTimeout sets the end of a running sandbox to d from now; at once if d is not
// positive.
func (s *Service) SetTimeout(ctx context.Context, owner Owner, id ID, d time.Duration) error {
	return s.setEnd(ctx, owner, id, d, false)
}

// Refresh prolongs the time of a running sandbox to d from now, unless it has more.
func (s *Service) Refresh(ctx context.Context, owner Owner, id ID, d time.Duration) error {
	return s.setEnd(ctx, owner, id, d, true)
}

func (s *Service) setEnd(_ context.Context, owner Owner, id ID, d time.Duration, only bool) error {
	if d > MaxTTL {
		return fmt.Errorf("%w: a timeout of %v is more than %v", ErrInvalid, d, MaxTTL)
	}
	b, err := s.find(owner, id)
	if err != nil {
		return err
	}
	b.touch()
	return b.prolong(max(d, 0), only)
}

// prolong sets the end of a running sandbox, only to a later one if only says so.
func (b *box) prolong(d time.Duration, only bool) error {
	end := time.Now().Add(d)
	b.mu.Lock()
	running, later := b.machine != nil && b.rec.state != store.Paused && !b.doomed, end.After(b.deadline)
	b.mu.Unlock()
	if !running {
		return fmt.Errorf("%w: sandbox %s is paused", ErrConflict, b.id)
	}
	if only && !later {
		return nil
	}
	if err := b.write(store.Change{}, func(r *record) { r.Sandbox.EndAt, r.TTL = end, d }); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine != nil {
		b.armLocked(end)
	}
	return nil
}
