package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

// Use takes a running sandbox in hand, and wakes a paused one whose AutoResume is set. It
// asks nothing about who: the caller checks tokens against Use.Sandbox. It fails with
// ErrNotFound, with ErrConflict for a paused one that stays so, and with ErrBusy for one
// that is just being paused.
func (s *Service) Use(ctx context.Context, id ID) (*Use, error) {
	b := s.box(id)
	for b != nil {
		u, err := b.use()
		if u != nil || err != nil {
			return u, err
		}
		if err := b.s.admitted(); err != nil {
			return nil, err
		}
		// It may be paused again by the time that it is looked at.
		if _, err := b.resume(ctx, 0, true, byDaemon); err != nil && !errors.Is(err, ErrConflict) {
			return nil, err
		}
	}
	return nil, fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
}

// use returns a use of a box that runs; nothing if it is to be woken first.
func (b *box) use() (*Use, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.toldLocked() {
		return nil, fmt.Errorf("sandbox %q: %w", b.id, ErrNotFound)
	}
	wakes := b.rec.Sandbox.AutoResume || b.rec.Parked
	switch {
	case b.machine != nil && b.ended != nil:
		b.used = time.Now()
		return &Use{Sandbox: b.viewLocked(), Machine: b.machine, Ended: b.ended, Release: func() {}}, nil
	case b.rec.state == store.Running:
		// Its machine has died, and nobody has cleared up yet.
		return nil, fmt.Errorf("sandbox %q: %w", b.id, ErrNotFound)
	case b.rec.state == store.Pausing && !wakes:
		return nil, fmt.Errorf("%w: sandbox %s is being paused", ErrBusy, b.id)
	case b.rec.state == store.Paused && !wakes:
		return nil, fmt.Errorf("%w: sandbox %s is paused", ErrConflict, b.id)
	}
	return nil, nil
}

// Running returns the running sandboxes of everybody.
func (s *Service) Running() []Sandbox {
	var all []Sandbox
	for _, b := range s.every() {
		b.mu.Lock()
		if b.toldLocked() && b.machine != nil && b.ended != nil {
			all = append(all, b.viewLocked())
		}
		b.mu.Unlock()
	}
	return all
}
