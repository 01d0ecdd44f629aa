package daemon

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/store"
)

// namePattern is what users may call snapshots: a namespace and a tag perhaps.
var namePattern = regexp.MustCompile(`^([a-z0-9][a-z0-9_-]{0,31}/)?[a-z0-9][a-z0-9_-]{0,47}(:[a-zA-Z0-9][a-zA-Z0-9._-]{0,31})?$`)

// Snapshot saves a running sandbox, which goes on, until DeleteTemplate. A name, which
// may be empty, is taken from the snapshot that had it before.
func (s *Service) Snapshot(ctx context.Context, owner Owner, id ID, name string) (Snapshot, error) {
	b, err := s.find(owner, id)
	if err != nil {
		return Snapshot{}, err
	}
	if name != "" && !namePattern.MatchString(name) {
		return Snapshot{}, fmt.Errorf("%w: %.80q cannot name a snapshot: use a-z, 0-9, '_' and '-'", ErrInvalid, name)
	}
	if name != "" && !strings.Contains(name, ":") {
		name += defaultTag
	}
	var sn *snap
	err = b.copied(ctx, store.KindUser, owner.ID, "snapshot", name, &sn)
	if err != nil {
		return Snapshot{}, err
	}
	defer s.drop(sn)
	s.mu.Lock()
	defer s.mu.Unlock()
	return sn.view(), nil
}

// copied saves a running sandbox as a snapshot of a kind, which the caller has to drop.
func (b *box) copied(ctx context.Context, kind, by, what, name string, into **snap) error {
	if err := b.s.canSave(true); err != nil {
		return err
	}
	b.touch()
	return b.do(ctx, opSnapshot, saveTimeout, true, b.runsLocked, func(ctx context.Context) (err error) {
		*into, err = b.copy(ctx, kind, by, what, name)
		return err
	})
}

func (b *box) copy(ctx context.Context, kind, by, what, name string) (_ *snap, err error) {
	s := b.s
	rec := b.record()
	b.mu.Lock()
	machine := b.machine
	b.mu.Unlock()
	sn, err := s.newSnap(&rec, b.owner, kind)
	if err != nil {
		return nil, err
	}
	if err := s.apply(store.Change{AddSnapshot: &sn.row}); err != nil {
		s.forgetSnap(sn)
		return nil, err
	}
	s.o.Failpoint("snapshot:intent")
	err = s.keep(ctx, sn, machine)
	s.o.Failpoint("snapshot:saved")
	if err == nil {
		row := sn.row
		row.State = store.Ready
		var names []string
		if name != "" {
			names = []string{name}
		}
		err = s.apply(store.Change{SetSnapshot: &row, Names: names, Durable: true, Events: []store.Event{event(b.id, what, by, row.ID)}})
		if err == nil {
			s.name(sn, row, names)
		}
	}
	if err != nil {
		s.mu.Lock()
		sn.doomed = true
		s.mu.Unlock()
		s.drop(sn)
		return nil, fmt.Errorf("cannot save sandbox %s: %w", b.id, err)
	}
	s.o.Failpoint("snapshot:ready")
	return sn, nil
}

// name makes a snapshot ready, with names that others had.
func (s *Service) name(sn *snap, row store.Snapshot, names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sn.row = row
	for _, other := range s.snaps {
		if other != sn && other.row.Owner == row.Owner {
			other.row.Names = slices.DeleteFunc(slices.Clone(other.row.Names), func(n string) bool { return slices.Contains(names, n) })
		}
	}
	sn.row.Names = names
}

// forkParallel is how many copies are made at once.
const forkParallel = 4

// Fork makes n copies of a running sandbox, which goes on; each has an ID and tokens of
// its own, and ttl of time, DefaultTTL when 0. An entry says how that went. It fails as a
// whole, with nothing made, when the sandbox cannot be saved.
func (s *Service) Fork(ctx context.Context, owner Owner, id ID, n int, ttl time.Duration) ([]Forked, error) {
	switch {
	case n < 1 || n > MaxForkCount:
		return nil, fmt.Errorf("%w: %d copies are outside 1..%d", ErrInvalid, n, MaxForkCount)
	case ttl < 0 || ttl > MaxTTL:
		return nil, fmt.Errorf("%w: a timeout of %v is outside 0..%v", ErrInvalid, ttl, MaxTTL)
	case ttl == 0:
		ttl = DefaultTTL
	}
	b, err := s.find(owner, id)
	if err != nil {
		return nil, err
	}
	if err := s.admitted(); err != nil {
		return nil, err
	}
	var sn *snap
	if err := b.copied(ctx, store.KindFork, owner.ID, "fork", "", &sn); err != nil {
		return nil, err
	}
	defer s.drop(sn)
	rec := b.record()
	forks := make([]Forked, n)
	slots := make(chan struct{}, forkParallel)
	var all sync.WaitGroup
	for i := range forks {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			forks[i].Sandbox, forks[i].Err = s.fork(ctx, rec, sn, ttl, owner.ID)
		})
	}
	all.Wait()
	if ctx.Err() == nil {
		return forks, nil
	}
	// Nobody learns of them.
	errs := []error{context.Cause(ctx)}
	for _, f := range forks {
		if copied := s.box(f.Sandbox.ID); f.Err == nil && copied != nil {
			s.endLater(copied, "killed", byDaemon, "its fork was given up")
		}
	}
	return nil, fmt.Errorf("cannot fork sandbox %s: %w", id, errors.Join(errs...))
}

// fork makes one copy.
func (s *Service) fork(ctx context.Context, rec record, sn *snap, ttl time.Duration, by string) (Sandbox, error) {
	origin := rec.Sandbox.ID
	rec.Sandbox.ID, rec.TTL, rec.Image, rec.Parked = newID(), ttl, "", false
	rec.state, rec.saved, rec.base = store.Creating, "", ""
	rec.secrets(rec.Sandbox.AccessToken != "")
	if !s.take(sn) {
		return Sandbox{}, fmt.Errorf("%w: snapshot %s", bouvet.ErrNotFound, sn.row.ID)
	}
	return s.launch(ctx, rec, sn, by, "created", "as a copy of "+string(origin))
}
