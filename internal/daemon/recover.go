package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/vm"
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
	rows, err := s.o.Store.Sandboxes(ctx)
	if err != nil {
		return err
	}
	recs := make(map[string]record, len(rows))
	for i := range rows {
		rec, err := readRecord(&rows[i])
		if err != nil {
			// It stays as it is: another version may know what it means (T34).
			s.log.LogAttrs(ctx, slog.LevelError, "sandbox is left alone", slog.Any("error", err))
			s.hold(rows[i].Saved)
			s.hold(rows[i].Base)
			continue
		}
		recs[rows[i].ID] = rec
	}
	machines, err := s.recoverMachines(ctx, recs)
	if err != nil {
		return err
	}
	var taken []func()
	for id, rec := range recs {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		run, err := s.recoverSandbox(rec, machines[id])
		if err != nil {
			return err
		}
		if run != nil {
			taken = append(taken, run)
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
	for _, run := range taken { // from here on others know the service
		run()
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

// adoptTimeout bounds the taking over of one machine.
const adoptTimeout = 20 * time.Second

// recoverMachines sees to it that the machines of the former process are gone, but those
// that sandboxes go on with, which it returns by the sandboxes.
func (s *Service) recoverMachines(ctx context.Context, recs map[string]record) (map[string]*bouvet.Sandbox, error) {
	rows, err := s.o.Store.Machines(ctx)
	if err != nil {
		return nil, err
	}
	taken := map[string]*bouvet.Sandbox{}
	for _, m := range rows {
		rec, known := recs[m.Sandbox]
		machine, err := s.adopt(ctx, m, &rec)
		if err != nil && !errors.Is(err, vm.ErrGone) {
			// The row stays, so that the next start tries again.
			s.log.LogAttrs(ctx, slog.LevelError, "machine cannot be taken over", slog.String("machine", m.ID), slog.String("id", m.Sandbox), slog.Any("error", err))
			continue
		}
		runs := rec.state == store.Running || rec.state == store.Pausing && !s.whole(rec.saved)
		if machine != nil && known && runs && rec.base == m.Base {
			taken[m.Sandbox] = machine
			continue
		}
		if machine != nil && !s.destroy(machine.ID()) {
			return nil, errClosed
		}
		if err := s.apply(store.Change{DropMachine: m.ID}); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// adopt takes over a machine. Where that cannot be they ended with the process that had
// them, and what they left was swept.
func (s *Service) adopt(ctx context.Context, m store.Machine, rec *record) (*bouvet.Sandbox, error) {
	if s.o.Adopt == nil {
		return nil, nil
	}
	id, err := bouvet.ParseSandboxID(m.ID)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, adoptTimeout)
	defer cancel()
	return s.o.Adopt(ctx, id, s.config(id, rec))
}

// recoverSandbox decides about one sandbox, of which run begins to watch a machine that
// lives.
func (s *Service) recoverSandbox(rec record, machine *bouvet.Sandbox) (run func(), err error) {
	b := s.newBox(rec)
	saved := s.snaps[rec.saved]
	switch rec.state {
	case store.Creating:
		return nil, s.apply(store.Change{Forget: string(b.id)})
	case store.Pausing:
		if saved != nil && s.whole(rec.saved) {
			// It was saved before the end.
			saved.row.State = store.Ready
			return nil, s.recoverPaused(b, saved, store.Change{SetSnapshot: &saved.row, Durable: true, Events: []store.Event{event(b.id, "paused", byDaemon, "the daemon was ended meanwhile")}})
		}
		return s.recoverRunning(b, machine, "the daemon was ended while it was paused")
	case store.Paused, store.Resuming:
		if saved == nil || !s.whole(rec.saved) {
			s.recoverMissing(b)
			return nil, nil
		}
		return nil, s.recoverPaused(b, saved, store.Change{})
	case store.Running:
		return s.recoverRunning(b, machine, "its machine ended with the daemon")
	case store.Killing:
		return nil, s.recoverEnded(b, "", "")
	default:
		s.log.LogAttrs(s.ctx, slog.LevelError, "sandbox of a state that is unknown is left alone", slog.String("id", string(b.id)), slog.String("state", string(rec.state)))
		s.hold(rec.saved)
		return nil, nil
	}
}

// recoverRunning takes in a sandbox whose machine lives; without one it is lost.
func (s *Service) recoverRunning(b *box, machine *bouvet.Sandbox, lost string) (run func(), err error) {
	if machine == nil {
		return nil, s.recoverEnded(b, "lost", lost)
	}
	free := func() {}
	if base := s.snaps[b.rec.base]; base != nil {
		_, release, err := s.o.Snapshots.Acquire(base.row.ID)
		if err != nil {
			// It runs on files that are open; should it be paused, it stands on others.
			s.log.LogAttrs(s.ctx, slog.LevelWarn, "snapshot of a machine cannot be held", slog.String("id", string(b.id)), slog.Any("error", err))
			release = func() {}
		}
		base.refs++
		free = func() { release(); s.drop(base) }
	}
	if err := b.write(store.Change{Events: []store.Event{event(b.id, "adopted", byDaemon, "")}}, func(r *record) { r.state, r.saved = store.Running, "" }); err != nil {
		return nil, err
	}
	s.countLocked(b, 1) // whatever the limits are now
	s.boxes[b.id] = b
	return func() { b.running(machine, free) }, nil
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
func (s *Service) recoverMissing(b *box) {
	_, err := s.o.Snapshots.Inspect(b.rec.saved)
	if errors.Is(err, snapstore.ErrNotFound) {
		err = fmt.Errorf("its snapshot %s is missing", b.rec.saved)
	}
	s.log.LogAttrs(s.ctx, slog.LevelError, "paused sandbox cannot be resumed", slog.String("id", string(b.id)), slog.Any("error", err))
	s.hold(b.rec.saved)
	s.boxes[b.id] = b
}

// recoverEnded finishes what is left of a sandbox.
func (s *Service) recoverEnded(b *box, kind, detail string) error {
	c := store.Change{}
	if kind != "" {
		c.Events = []store.Event{event(b.id, kind, byDaemon, detail)}
	}
	return b.write(c, func(r *record) { r.state, r.saved, r.base = store.Ended, "", "" })
}
