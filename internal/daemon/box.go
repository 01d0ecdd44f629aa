package daemon

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/wire"
)

// A record is what is written down of a sandbox. It is a value: its maps are replaced,
// not changed.
type record struct {
	Sandbox Sandbox
	// TTL is what its time was last set to.
	TTL time.Duration
	// Parked ones were paused because the daemon ended, and wake when they are used.
	Parked bool
	// Image is the image of the store that it was made of; empty if of a snapshot.
	Image string
	// Disk is the size of its disk in MiB, 0 if its files are in memory.
	Disk int

	state       store.State
	saved, base string
}

// row is the record as the database has it.
func (r *record) row() (*store.Sandbox, error) {
	spec, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("cannot write sandbox %s: %w", r.Sandbox.ID, err)
	}
	row := &store.Sandbox{
		ID: string(r.Sandbox.ID), Owner: r.Sandbox.Owner, State: r.state, Saved: r.saved, Base: r.base,
		StartedAt: r.Sandbox.StartedAt, EndAt: r.Sandbox.EndAt, Spec: spec,
	}
	if r.state == store.Ended {
		row.Ended = time.Now()
		row.Spec = []byte("{}") // its environment and tokens are nobody's business any more
	}
	return row, nil
}

// readRecord is the inverse of row.
func readRecord(row *store.Sandbox) (record, error) {
	var r record
	if err := wire.Decode(row.Spec, &r); err != nil {
		return record{}, fmt.Errorf("cannot read sandbox %.40q: %w", row.ID, err)
	}
	id, err := ParseID(row.ID)
	if err != nil {
		return record{}, err
	}
	r.Sandbox.ID, r.Sandbox.Owner, r.Sandbox.StartedAt, r.Sandbox.EndAt = id, row.Owner, row.StartedAt, row.EndAt
	r.state, r.saved, r.base = row.State, row.Saved, row.Base
	return r, nil
}

// Names of operations.
const (
	opCreate   = "create"
	opPause    = "pause"
	opResume   = "resume"
	opSnapshot = "snapshot"
	opKill     = "kill"
	opClose    = "close"
)

// An op is something that is done with a sandbox; there is one at a time.
type op struct {
	kind   string
	began  time.Time
	cancel context.CancelCauseFunc
	done   chan struct{}
	err    error // set before done is closed
}

// A box is a sandbox through all its machines.
type box struct {
	s     *Service
	id    ID
	owner string

	journal sync.Mutex // held while rec is changed and written

	mu       sync.Mutex
	rec      record          // guarded by mu, and by journal for writing
	op       *op             // guarded by mu
	doomed   bool            // somebody kills it; guarded by mu
	machine  *bouvet.Sandbox // guarded by mu
	reserved bool            // the limits count it; guarded by mu
	free     func()          // gives back the snapshot of the machine; guarded by mu
	ended    chan struct{}   // closed at the end of this run; nil without one; guarded by mu
	deadline time.Time       // the end of its time, by the monotonic clock; guarded by mu
	timer    *time.Timer     // strikes then; guarded by mu
	used     time.Time       // when somebody last wanted something of it; guarded by mu

	metrics []Metric // guarded by mu

	gone chan struct{} // closed when all of it is removed
}

func (s *Service) newBox(rec record) *box {
	return &box{s: s, id: rec.Sandbox.ID, owner: rec.Sandbox.Owner, rec: rec, used: time.Now(), gone: make(chan struct{})}
}

// told reports whether its owner may know of it.
func (b *box) told() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.toldLocked()
}

func (b *box) toldLocked() bool {
	return !b.doomed && b.rec.state != store.Creating && b.rec.state != store.Killing && b.rec.state != store.Ended
}

// record returns what is written down of it.
func (b *box) record() record {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rec
}

// view describes it. A sandbox that is being paused still runs, one that is being resumed
// is still paused.
func (b *box) view() Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.viewLocked()
}

func (b *box) viewLocked() Sandbox {
	v := b.rec.Sandbox
	v.State = StateRunning
	if b.rec.state == store.Paused || b.rec.state == store.Resuming {
		v.State = StatePaused
	}
	v.Metadata, v.Env = maps.Clone(v.Metadata), maps.Clone(v.Env)
	return v
}

// write changes the record, in the database first. c is what changes with it.
func (b *box) write(c store.Change, set func(*record)) error {
	b.journal.Lock()
	defer b.journal.Unlock()
	b.mu.Lock()
	rec := b.rec
	b.mu.Unlock()
	set(&rec)
	if len(c.Events) > 0 {
		b.s.events.flush() // what was before stands before
	}
	row, err := rec.row()
	if err != nil {
		return err
	}
	if c.Insert == nil {
		c.Update = row
	} else {
		c.Insert = row
	}
	if err := b.s.apply(c); err != nil {
		return err
	}
	b.mu.Lock()
	b.rec = rec
	b.mu.Unlock()
	return nil
}

// begin takes the box for an operation when those before are over. check says, with the
// box locked, whether there is anything to do.
func (b *box) begin(ctx context.Context, kind string, limit time.Duration, check func() error) (*op, context.Context, error) {
	for {
		b.mu.Lock()
		if b.rec.state == store.Ended || b.doomed && kind != opKill {
			b.mu.Unlock()
			return nil, nil, fmt.Errorf("sandbox %q: %w", b.id, ErrNotFound)
		}
		before := b.op
		if before == nil {
			if check != nil {
				if err := check(); err != nil {
					b.mu.Unlock()
					return nil, nil, err
				}
			}
			opCtx, cancel := context.WithCancelCause(b.s.ctx)
			opCtx, stop := context.WithTimeout(opCtx, limit)
			o := &op{kind: kind, began: time.Now(), done: make(chan struct{}), cancel: func(err error) { cancel(err); stop() }}
			b.op = o
			b.mu.Unlock()
			return o, opCtx, nil
		}
		b.mu.Unlock()
		select {
		case <-before.done:
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("%w: sandbox %s is busy (%s): %w", ErrBusy, b.id, before.kind, context.Cause(ctx))
		}
	}
}

// finish ends an operation.
func (b *box) finish(o *op, err error) {
	o.err = err
	o.cancel(nil)
	if o.kind != opClose {
		b.s.o.Observe(o.kind, time.Since(o.began), err)
	}
	b.mu.Lock()
	b.op = nil
	b.mu.Unlock()
	close(o.done)
}

// do runs an operation, which goes on when ctx ends, unless that binds it: then it is
// given up, and do returns when it is undone.
func (b *box) do(ctx context.Context, kind string, limit time.Duration, binds bool, check func() error, run func(ctx context.Context) error) error {
	o, opCtx, err := b.begin(ctx, kind, limit, check)
	if err != nil {
		return err
	}
	if !b.s.background.run(func() { b.finish(o, run(opCtx)) }) {
		b.finish(o, errClosed)
	}
	select {
	case <-o.done:
		return o.err
	case <-ctx.Done():
	}
	if !binds {
		return fmt.Errorf("the sandbox's %s goes on: %w", kind, context.Cause(ctx))
	}
	o.cancel(context.Cause(ctx))
	<-o.done
	return o.err
}

// touch remembers that somebody wanted something of it.
func (b *box) touch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = time.Now()
}

// cutLocked ends the responses of this run.
func (b *box) cutLocked() {
	if b.ended != nil {
		close(b.ended)
		b.ended = nil
	}
}

// running takes a machine that runs into the box: responses go to it, its end is watched,
// and its time begins.
func (b *box) running(machine *bouvet.Sandbox, free func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine, b.free, b.ended = machine, free, make(chan struct{})
	b.s.background.run(func() { b.watch(machine) })
	b.s.background.run(func() { b.sample(machine) })
	b.armLocked(b.rec.Sandbox.EndAt)
}

// watch waits for the end of a machine and, when that came by itself, ends the sandbox.
func (b *box) watch(machine *bouvet.Sandbox) {
	select {
	case <-machine.Done():
	case <-b.s.ctx.Done():
		return
	}
	err := machine.Err()
	if err == nil {
		return // destroyed by an operation
	}
	b.mu.Lock()
	current := b.machine == machine
	if current {
		b.cutLocked()
	}
	b.mu.Unlock()
	if current {
		b.s.endLater(b, "lost", byDaemon, err.Error())
	}
}
