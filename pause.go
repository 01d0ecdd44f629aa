package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

// Pause stops the guest's processors until Resume. Commands that run stay attached and
// go on after Resume with nothing lost. Their timeouts stand still meanwhile on the
// host; in the guest as far as its clock does (gVisor's goes on, so that a command may
// be timed out at once when it goes on). A call that is under way, such as Execute, is
// bounded by its RPC timeout as ever. While it is Paused other methods return an
// InvalidStateError; Destroy works. It is idempotent.
func (s *Sandbox) Pause(ctx context.Context) error {
	return s.move(ctx, "pause", func() error {
		if err := s.shift(Ready, Paused); err != nil {
			return err
		}
		s.clock.set(true)
		err := s.machine.Pause(ctx)
		if err == nil {
			return nil
		}
		// It may stand still nevertheless.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if rerr := s.machine.Resume(undo); rerr != nil && !errors.Is(rerr, vm.ErrGone) && !errors.Is(rerr, vm.ErrUnsupported) {
			err = errors.Join(err, rerr)
		}
		s.unpaused()
		return err
	})
}

// Resume lets a paused guest go on. It is idempotent. When it fails the sandbox is
// still Paused, and it may be called again.
func (s *Sandbox) Resume(ctx context.Context) error {
	return s.move(ctx, "resume", func() error {
		if s.State() != Paused {
			return s.check()
		}
		if err := s.machine.Resume(ctx); err != nil {
			return err
		}
		s.unpaused()
		return nil
	})
}

// unpaused makes a paused sandbox ready.
func (s *Sandbox) unpaused() {
	_ = s.shift(Paused, Ready) // it may have been destroyed
	s.clock.set(false)
}

// shift changes the state from one to another, which it may be already.
func (s *Sandbox) shift(from, to State) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != from && s.state != to {
		return s.checkLocked()
	}
	s.state = to
	return nil
}

// move runs one of the methods that stop the machine, of which there is one at a
// time, and gives its error a kind.
func (s *Sandbox) move(ctx context.Context, what string, do func() error) error {
	select {
	case s.moving <- struct{}{}:
		defer func() { <-s.moving }()
	case <-s.done:
		return s.check()
	case <-ctx.Done():
		return fmt.Errorf("cannot %s sandbox %s: %w", what, s.id, context.Cause(ctx))
	}
	err := do()
	select {
	case <-s.done:
		if err != nil {
			return s.check()
		}
	default:
	}
	switch {
	case err == nil, errors.Is(err, ErrInvalidState), errors.Is(err, ErrVM):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("cannot %s sandbox %s: %w", what, s.id, errors.Join(context.Cause(ctx), err))
	case errors.Is(err, ErrRPC), errors.Is(err, ErrIO), errors.Is(err, ErrJSON), errors.Is(err, ErrConnection):
		return fmt.Errorf("cannot %s sandbox %s: %w", what, s.id, err)
	default:
		return &VMError{fmt.Errorf("cannot %s machine %s: %w", what, s.id, err)}
	}
}

// Snapshot saves the sandbox into dir, an absolute path of an empty directory that only
// its owner can use, from which Manager.Restore makes copies. The guest's processes
// stand still meanwhile; then all goes on as before, with nothing lost: commands stay
// attached (unless the driver's Features say SnapshotResets: then they end), and calls
// that are made meanwhile wait. When it fails dir is empty again
// and the sandbox goes on. What goes through Client and not through the Sandbox may be
// refused meanwhile, with code wire.CodeFrozen. The snapshot holds the guest's whole
// memory, secrets included.
func (s *Sandbox) Snapshot(ctx context.Context, dir string) error {
	return s.move(ctx, "save", func() error {
		begin := time.Now()
		over, err := s.hold(ctx)
		if err != nil {
			return err
		}
		defer over()
		// Even when the freeze fails: it may have succeeded after ctx had ended.
		if err = s.client.Freeze(ctx); err == nil {
			err = s.machine.Snapshot(ctx, dir)
		}
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if terr := s.client.Thaw(undo, ThawOptions{}); terr != nil && !errors.Is(terr, ErrUnsupported) {
			terr = fmt.Errorf("cannot let the sandbox go on, destroy it: %w", terr)
			err = errors.Join(err, terr)
		}
		s.log.LogAttrs(ctx, slog.LevelDebug, "sandbox saved", slog.String("id", s.id.String()), slog.Duration("elapsed", time.Since(begin)), slog.Any("error", err))
		return err
	})
}

// hold lets no command start until over is called, and waits for those that do.
func (s *Sandbox) hold(ctx context.Context) (over func(), err error) {
	s.mu.Lock()
	if err := s.checkLocked(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	saved, started := make(chan struct{}), make(chan struct{})
	s.saves++
	if s.saved = saved; s.starting == 0 {
		close(started)
	} else {
		s.started = started
	}
	s.mu.Unlock()
	over = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.saved, s.started = nil, nil
		close(saved)
	}
	select {
	case <-started:
		return over, nil
	case <-ctx.Done():
		over()
		return nil, context.Cause(ctx)
	case <-s.done:
		over()
		return nil, s.check()
	}
}

// awaitSaved waits for the end of a Snapshot.
func (s *Sandbox) awaitSaved(ctx context.Context, saved <-chan struct{}) error {
	select {
	case <-saved:
		return nil
	case <-s.done:
		return s.check()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// unfrozen makes a call, and makes it again if it was refused because of a Snapshot:
// the agent has done nothing then.
func (s *Sandbox) unfrozen(ctx context.Context, do func() error) error {
	for {
		s.mu.Lock()
		saved, saves := s.saved, s.saves
		s.mu.Unlock()
		if saved != nil {
			if err := s.awaitSaved(ctx, saved); err != nil {
				return err
			}
		}
		err := do()
		var rpc *RPCError
		if !errors.As(err, &rpc) || rpc.Code != wire.CodeFrozen {
			return err
		}
		s.mu.Lock()
		again := s.saves != saves || s.saved != nil
		s.mu.Unlock()
		if !again {
			return err // somebody else has frozen it
		}
	}
}
