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

// Pause saves a running sandbox and ends its machine; responses end. It fails with
// ErrConflict if it is paused already, and with ErrUnsupported where the driver cannot
// save machines, or not without their memory.
func (s *Service) Pause(ctx context.Context, owner Owner, id ID, memory bool) error {
	b, err := s.find(owner, id)
	if err != nil {
		return err
	}
	return b.pause(ctx, memory, owner.ID, "", false, nil)
}

func (s *Service) canSave(memory bool) error {
	if !memory {
		return fmt.Errorf("%w: a sandbox cannot be paused without its memory here; pause it with memory", ErrUnsupported)
	}
	if !s.o.Features.Snapshot {
		return fmt.Errorf("%w: the driver of this host cannot save sandboxes; bouvet doctor shows what each can do", ErrUnsupported)
	}
	return nil
}

// pause pauses a box; check is asked when nothing else is done with it.
func (b *box) pause(ctx context.Context, memory bool, by, detail string, park bool, check func() error) error {
	if err := b.s.canSave(memory); err != nil {
		return err
	}
	return b.do(ctx, opPause, saveTimeout, false, func() error {
		if err := b.runsLocked(); err != nil {
			return err
		}
		if check != nil {
			return check()
		}
		return nil
	}, func(ctx context.Context) error { return b.save(ctx, by, detail, park) })
}

// runsLocked reports an error unless the box has a machine.
func (b *box) runsLocked() error {
	if b.machine == nil {
		return fmt.Errorf("%w: sandbox %s is paused", ErrConflict, b.id)
	}
	return nil
}

// save makes a paused sandbox of a running one. When it fails the sandbox runs.
func (b *box) save(ctx context.Context, by, detail string, park bool) (err error) {
	s := b.s
	rec := b.record()
	sn, err := s.newSnap(&rec, b.owner, store.KindPause)
	if err != nil {
		return err
	}
	if err := b.write(store.Change{AddSnapshot: &sn.row}, func(r *record) { r.state, r.saved = store.Pausing, sn.row.ID }); err != nil {
		s.forgetSnap(sn)
		return err
	}
	s.o.Failpoint("pause:intent")
	// What answers from here on would tell of what the snapshot may not know.
	b.mu.Lock()
	machine := b.machine
	b.cutLocked()
	b.mu.Unlock()
	err = s.keep(ctx, sn, machine)
	s.o.Failpoint("pause:saved")
	if err == nil {
		err = b.write(store.Change{
			SetSnapshot: s.mark(sn, store.Ready), Durable: true,
			Events: []store.Event{event(b.id, "paused", by, detail)},
		}, func(r *record) { r.state, r.Parked = store.Paused, park })
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot pause sandbox %s: %w", b.id, err), b.unsave(sn, machine))
	}
	s.o.Failpoint("pause:paused")
	b.mu.Lock()
	b.disarmLocked()
	b.mu.Unlock()
	if !s.destroy(machine.ID()) {
		return errClosed
	}
	s.o.Failpoint("pause:destroyed")
	if err := b.write(store.Change{DropMachine: machine.ID().String()}, func(r *record) { r.base = "" }); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot forget machine", slog.String("id", string(b.id)), slog.Any("error", err))
	}
	b.mu.Lock()
	free := b.free
	b.machine, b.free = nil, nil
	b.mu.Unlock()
	free()
	s.unreserve(b)
	s.o.Failpoint("pause:done")
	return nil
}

// mark gives a snapshot a state, and returns its row.
func (s *Service) mark(sn *snap, state string) *store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn.row.State = state
	row := sn.row
	return &row
}

// keep saves a machine as a snapshot that is written down.
func (s *Service) keep(ctx context.Context, sn *snap, machine *bouvet.Sandbox) error {
	err := s.o.Snapshots.Save(ctx, sn.row.ID, func(dir string) error { return machine.Snapshot(ctx, dir) })
	if err == nil {
		s.pin(ctx, sn)
	}
	return err
}

// unsave lets a sandbox that could not be paused go on.
func (b *box) unsave(sn *snap, machine *bouvet.Sandbox) error {
	err := b.write(store.Change{SetSnapshot: b.s.mark(sn, store.Deleting)}, func(r *record) { r.state, r.saved, r.Parked = store.Running, "", false })
	b.s.drop(sn)
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-machine.Done():
	default:
		b.ended = make(chan struct{})
	}
	return err
}

// Connect returns a running sandbox, which it resumes if it is paused: resumed says so.
// ttl is the time that it has from now, 0 for what it had; the end never comes sooner.
// memory false is ErrUnsupported for a paused sandbox.
func (s *Service) Connect(ctx context.Context, owner Owner, id ID, ttl time.Duration, memory bool) (sb Sandbox, resumed bool, err error) {
	if ttl < 0 || ttl > MaxTTL {
		return Sandbox{}, false, fmt.Errorf("%w: a timeout of %v is outside 0..%v", ErrInvalid, ttl, MaxTTL)
	}
	b, err := s.find(owner, id)
	if err != nil {
		return Sandbox{}, false, err
	}
	b.touch()
	resumed, err = b.resume(ctx, ttl, memory, owner.ID)
	if err == nil && !resumed && ttl > 0 {
		err = b.prolong(ttl, true)
	}
	if err != nil {
		return Sandbox{}, false, err
	}
	return b.view(), resumed, nil
}

// errRuns means that there is nothing to resume.
var errRuns = errors.New("sandbox runs")

// resume makes a sandbox run, and reports whether it did not. Of several at once one
// does it, and the others wait for what comes of that.
func (b *box) resume(ctx context.Context, ttl time.Duration, memory bool, by string) (bool, error) {
	b.mu.Lock()
	o := b.op
	b.mu.Unlock()
	if o != nil && o.kind == opResume {
		select {
		case <-o.done:
			return o.err == nil, o.err
		case <-ctx.Done():
			return false, fmt.Errorf("%w: sandbox %s is being resumed: %w", ErrBusy, b.id, context.Cause(ctx))
		}
	}
	err := b.do(ctx, opResume, resumeTimeout, false, func() error {
		if b.machine != nil {
			return errRuns
		}
		if !memory {
			return fmt.Errorf("%w: a sandbox that was paused with its memory cannot be resumed without it here", ErrUnsupported)
		}
		return nil
	}, func(ctx context.Context) error { return b.wake(ctx, ttl, by) })
	if errors.Is(err, errRuns) {
		return false, nil
	}
	return err == nil, err
}

// wake makes a running sandbox of a paused one. When it fails the sandbox is paused.
func (b *box) wake(ctx context.Context, ttl time.Duration, by string) (err error) {
	s := b.s
	if err := s.reserve(b); err != nil {
		return err
	}
	rec := b.record()
	from := s.snap(rec.saved)
	if from == nil {
		s.unreserve(b)
		return fmt.Errorf("sandbox %s: snapshot %q is missing", b.id, rec.saved)
	}
	if ttl == 0 {
		ttl = max(rec.TTL, DefaultTTL)
	}
	machine := store.Machine{ID: bouvet.NewSandboxID().String(), Sandbox: string(b.id), Base: from.row.ID, Made: time.Now()}
	var made *bouvet.Sandbox
	defer func() {
		if err == nil {
			return
		}
		err = fmt.Errorf("cannot resume sandbox %s: %w", b.id, err)
		if made != nil {
			s.destroy(made.ID())
		}
		err = errors.Join(err, b.write(store.Change{DropMachine: machine.ID}, func(r *record) { r.state, r.base = store.Paused, "" }))
		s.unreserve(b)
	}()
	if err = b.write(store.Change{AddMachine: &machine}, func(r *record) { r.state, r.base = store.Resuming, from.row.ID }); err != nil {
		return err
	}
	s.o.Failpoint("resume:intent")
	rec.Image = "" // the snapshot knows
	made, free, err := s.boot(ctx, machine.ID, rec, from)
	if err != nil {
		return err
	}
	s.o.Failpoint("resume:made")
	now := time.Now()
	if err = b.write(store.Change{Events: []store.Event{event(b.id, "resumed", by, "")}}, func(r *record) {
		r.state, r.saved, r.Parked = store.Running, "", false
		r.Sandbox.StartedAt, r.Sandbox.EndAt = now, now.Add(ttl)
		r.TTL = ttl
	}); err != nil {
		return err
	}
	b.running(made, free)
	s.o.Failpoint("resume:running")
	return nil
}
