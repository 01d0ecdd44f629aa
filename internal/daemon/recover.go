package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
)

// recover decides about everything that the database knows: what a former process was
// about to do is finished or undone.
func (s *Service) recover(ctx context.Context) error {
	if s.o.Sweep != nil {
		if err := s.o.Sweep(ctx); err != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "cannot remove all that is left of machines", slog.Any("error", err))
		}
	}
	if err := s.recoverSnapshots(ctx); err != nil {
		return err
	}
	machines, err := s.recoverMachines(ctx)
	if err != nil {
		return err
	}
	rows, err := s.o.Store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	for i := range rows {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		rec, err := readRecord(&rows[i])
		if err != nil {
			// It stays as it is: another version may know what it means (T34).
			s.log.LogAttrs(ctx, slog.LevelError, "sandbox is left alone", slog.Any("error", err))
			s.hold(rows[i].Saved)
			continue
		}
		if err := s.recoverSandbox(rec, machines[rows[i].ID]); err != nil {
			return err
		}
	}
	s.mu.Lock()
	var unused []*snap
	for _, sn := range s.snaps {
		if sn.doomed && sn.refs == 0 {
			unused = append(unused, sn)
		}
	}
	s.mu.Unlock()
	for _, sn := range unused {
		s.remove(sn)
	}
	for _, sn := range s.snaps {
		s.pin(ctx, sn)
	}
	return nil
}

// hold counts a use of a snapshot that must not be removed.
func (s *Service) hold(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn := s.snaps[name]; sn != nil {
		sn.refs++
	}
}

// recoverSnapshots reads the snapshots. One that was being saved may be whole.
func (s *Service) recoverSnapshots(ctx context.Context) error {
	rows, err := s.o.Store.Snapshots(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		sn, err := readSnap(row)
		if err != nil {
			s.log.LogAttrs(ctx, slog.LevelError, "snapshot is left alone", slog.Any("error", err))
			continue
		}
		s.snaps[row.ID] = sn
	}
	return nil
}

// whole reports whether the files of a snapshot are complete.
func (s *Service) whole(name string) bool {
	info, err := s.o.Snapshots.Inspect(name)
	return err == nil && info.Problem == ""
}

// recoverMachines sees to it that the machines of the former process are gone, and
// returns those that are not, by their sandboxes.
func (s *Service) recoverMachines(ctx context.Context) (map[string]store.Machine, error) {
	rows, err := s.o.Store.Machines(ctx)
	if err != nil {
		return nil, err
	}
	// The machines are not detached: they ended with the process that had them, and what
	// they left was swept.
	for _, m := range rows {
		if err := s.apply(store.Change{DropMachine: m.ID}); err != nil {
			return nil, err
		}
	}
	return map[string]store.Machine{}, nil
}

// recoverSandbox decides about one sandbox.
func (s *Service) recoverSandbox(rec record, _ store.Machine) error {
	b := s.newBox(rec)
	saved := s.snaps[rec.saved]
	switch rec.state {
	case store.Creating:
		return s.apply(store.Change{Forget: string(b.id)})
	case store.Pausing:
		if saved != nil && s.whole(rec.saved) {
			// It was saved before the end.
			saved.row.State = store.Ready
			return s.recoverPaused(b, saved, store.Change{SetSnapshot: &saved.row, Durable: true, Events: []store.Event{event(b.id, "paused", byDaemon, "the daemon was ended meanwhile")}})
		}
		return s.recoverEnded(b, "lost", "the daemon was ended while it was paused")
	case store.Paused, store.Resuming:
		if saved == nil || !s.whole(rec.saved) {
			return s.recoverMissing(b)
		}
		return s.recoverPaused(b, saved, store.Change{})
	case store.Running:
		return s.recoverEnded(b, "lost", "its machine ended with the daemon")
	case store.Killing:
		return s.recoverEnded(b, "", "")
	default:
		s.log.LogAttrs(s.ctx, slog.LevelError, "sandbox of a state that is unknown is left alone", slog.String("id", string(b.id)), slog.String("state", string(rec.state)))
		s.hold(rec.saved)
		return nil
	}
}

// recoverPaused takes in a paused sandbox.
func (s *Service) recoverPaused(b *box, saved *snap, c store.Change) error {
	if b.rec.state != store.Paused || b.rec.base != "" || c.SetSnapshot != nil {
		if err := b.write(c, func(r *record) { r.state, r.base = store.Paused, "" }); err != nil {
			return err
		}
	}
	saved.refs++
	s.boxes[b.id] = b
	return nil
}

// recoverMissing keeps a paused sandbox whose files are not there or damaged: somebody
// may put them back, and nothing is deleted that is not understood.
func (s *Service) recoverMissing(b *box) error {
	_, err := s.o.Snapshots.Inspect(b.rec.saved)
	if errors.Is(err, snapstore.ErrNotFound) {
		err = fmt.Errorf("its snapshot %s is missing", b.rec.saved)
	}
	s.log.LogAttrs(s.ctx, slog.LevelError, "paused sandbox cannot be resumed", slog.String("id", string(b.id)), slog.Any("error", err))
	s.hold(b.rec.saved)
	s.boxes[b.id] = b
	return nil
}

// recoverEnded finishes what is left of a sandbox.
func (s *Service) recoverEnded(b *box, kind, detail string) error {
	c := store.Change{}
	if kind != "" {
		c.Events = []store.Event{event(b.id, kind, byDaemon, detail)}
	}
	return b.write(c, func(r *record) { r.state, r.saved, r.base = store.Ended, "", "" })
}

// AtClose says what becomes of running sandboxes when the service is closed.
type AtClose string

// What becomes of running sandboxes when the service is closed.
const (
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
	errs = append(errs, s.o.Manager.Close(late))
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
