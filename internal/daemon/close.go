package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

// AtClose says what becomes of running sandboxes when the service is closed.
type AtClose string

// What becomes of running sandboxes when the service is closed.
const (
	// CloseLeaves lets them run for the next process, where the driver can; else it is
	// ClosePauses.
	CloseLeaves AtClose = "leave"
	// ClosePauses pauses them where the driver can, and ends them elsewhere. They wake
	// when they are next used.
	ClosePauses AtClose = "pause"
	// CloseKills ends them.
	CloseKills AtClose = "kill"
)

// Drain refuses new sandboxes from now on, with ErrDraining.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
}

// closeParallel is how many sandboxes are paused at once when the service is closed.
const closeParallel = 4

// Close ends the service and its machines. What could not be done when ctx ends is left
// to the next start, which finds it written down. It must be called once.
func (s *Service) Close(ctx context.Context, how AtClose) error {
	s.Drain()
	leaves := how == CloseLeaves && s.o.Adopt != nil
	if how == CloseLeaves && !leaves {
		how = ClosePauses
	}
	var errs []error
	done := make(chan error)
	slots := make(chan struct{}, closeParallel)
	boxes := s.every()
	for _, b := range boxes {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			done <- s.settle(ctx, b, how)
		}()
	}
	for range boxes {
		errs = append(errs, <-done)
	}
	s.cancel(errClosed)
	s.background.close()
	for _, b := range boxes {
		b.mu.Lock()
		b.disarmLocked()
		b.cutLocked()
		b.mu.Unlock()
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if leaves {
		errs = append(errs, s.o.Detach(late))
	} else {
		errs = append(errs, s.o.Manager.Close(late))
	}
	s.unpin()
	s.events.close()
	return errors.Join(errs...)
}

// closeGrace is how long machines may take to end when the service is closed.
const closeGrace = 30 * time.Second

// settle does with a sandbox what is to become of it.
func (s *Service) settle(ctx context.Context, b *box, how AtClose) error {
	b.mu.Lock()
	if o := b.op; o != nil && (o.kind == opCreate || o.kind == opResume) {
		o.cancel(ErrDraining)
	}
	b.mu.Unlock()
	if how == CloseLeaves {
		o, _, err := b.begin(ctx, opClose, saveTimeout, nil) // when what is under way is over
		if err == nil {
			b.finish(o, nil)
		}
		return nil
	}
	if how == ClosePauses && s.o.Features.Snapshot {
		err := b.pause(ctx, true, byDaemon, "the daemon ends", true, nil)
		if err == nil || errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound) {
			return nil
		}
		return fmt.Errorf("cannot pause sandbox %s: %w", b.id, err)
	}
	if b.record().state == store.Paused {
		return nil
	}
	s.endLater(b, "killed", byDaemon, "the daemon ends")
	select {
	case <-b.gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot end sandbox %s: %w", b.id, context.Cause(ctx))
	}
}
