package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/store"
)

// errKilled is why something else with a sandbox was given up.
var errKilled = fmt.Errorf("%w: the sandbox was killed", ErrNotFound)

// Kill ends a sandbox in whatever state it is, and returns when all of it is removed. Of
// several at once one succeeds; the others fail with ErrNotFound.
func (s *Service) Kill(ctx context.Context, owner Owner, id ID) error {
	b, err := s.find(owner, id)
	if err != nil {
		return err
	}
	if !s.endLater(b, "killed", owner.ID, "") {
		return fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
	}
	select {
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the sandbox's kill goes on: %w", context.Cause(ctx))
	}
}

// endLater begins to end a sandbox: what else is done with it is given up. It reports
// whether nobody else had begun.
func (s *Service) endLater(b *box, kind, by, detail string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.doomed {
		return false
	}
	b.doomed = true
	b.disarmLocked()
	if b.op != nil {
		b.op.cancel(errKilled)
	}
	s.background.run(func() {
		o, _, err := b.begin(s.ctx, opKill, time.Hour, nil)
		if err != nil {
			return // it was never made, or the service is closed and the next one sees to it
		}
		b.finish(o, b.end(kind, by, detail))
	})
	return true
}

// end removes all of a sandbox. It goes on where the database cannot be written: what is
// left there is seen to at the next start.
func (b *box) end(kind, by, detail string) error {
	s := b.s
	b.mu.Lock()
	b.cutLocked()
	machine := b.machine
	b.mu.Unlock()
	var errs []error
	errs = append(errs, b.write(store.Change{Events: []store.Event{event(b.id, kind, by, detail)}}, func(r *record) { r.state = store.Killing }))
	s.o.Failpoint("kill:intent")
	dropped := ""
	if machine != nil {
		if !s.destroy(machine.ID()) {
			return errClosed
		}
		dropped = machine.ID().String()
	}
	s.o.Failpoint("kill:destroyed")
	b.mu.Lock()
	saved, free := b.rec.saved, b.free
	b.machine, b.free = nil, nil
	b.mu.Unlock()
	if free != nil {
		free()
	}
	errs = append(errs, b.write(store.Change{DropMachine: dropped}, func(r *record) { r.state, r.saved, r.base = store.Ended, "", "" }))
	s.o.Failpoint("kill:ended")
	s.drop(s.snap(saved))
	s.leave(b)
	err := errors.Join(errs...)
	if err != nil {
		s.log.LogAttrs(s.ctx, slog.LevelWarn, "cannot write down the end of sandbox", slog.String("id", string(b.id)), slog.Any("error", err))
	}
	s.log.LogAttrs(s.ctx, slog.LevelInfo, "sandbox ended", slog.String("id", string(b.id)), slog.String("kind", kind), slog.String("by", by))
	return err
}

// Destroying a machine is tried again after these times.
const (
	destroyTimeout  = time.Minute
	destroyRetryMin = time.Second
	destroyRetryMax = time.Minute
)

// destroy ends a machine, and tries until it is gone. It reports false if the service was
// closed before.
func (s *Service) destroy(id bouvet.SandboxID) bool {
	for wait := destroyRetryMin; ; wait = min(2*wait, destroyRetryMax) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), destroyTimeout)
		err := s.o.Manager.Destroy(ctx, id)
		cancel()
		if err == nil || errors.Is(err, bouvet.ErrNotFound) {
			return true
		}
		s.log.LogAttrs(s.ctx, slog.LevelWarn, "cannot destroy machine, will try again", slog.String("machine", id.String()), slog.Any("error", err))
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
			return false
		}
	}
}
