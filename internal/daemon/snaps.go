package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/wire"
)

// A saved is what is written down of a snapshot: what is made of it.
type saved struct {
	Template, Alias        string
	VCPUs, MemoryMiB, Disk int
}

// A snap is a snapshot that the service keeps.
type snap struct {
	row  store.Snapshot
	spec saved
	// refs counts the sandboxes that are it, or whose machines were restored from it.
	refs int // guarded by Service.mu
	// image is the digest of the image that is held for it.
	image string // guarded by Service.mu
	// doomed ones go with the last of them.
	doomed bool // guarded by Service.mu
}

// name is the snapshot's name, empty for none.
func (sn *snap) name() string {
	if sn == nil {
		return ""
	}
	return sn.row.ID
}

// newSnap describes a snapshot that is to be made of a sandbox, if its owner may have one
// more. Its caller has taken it.
func (s *Service) newSnap(rec *record, owner, kind string) (*snap, error) {
	sn := &snap{
		spec: saved{Template: rec.Sandbox.Template, Alias: rec.Sandbox.Alias, VCPUs: rec.Sandbox.VCPUs, MemoryMiB: rec.Sandbox.MemoryMiB, Disk: rec.Disk},
		// Others than those of users are nobody's choice, and go with their last use.
		doomed: kind != store.KindUser, refs: 1,
	}
	spec, err := json.Marshal(sn.spec)
	if err != nil {
		return nil, fmt.Errorf("cannot write snapshot: %w", err)
	}
	sn.row = store.Snapshot{ID: newName(), Owner: owner, Sandbox: string(rec.Sandbox.ID), Kind: kind, State: store.Saving, CreatedAt: time.Now(), Spec: spec}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, other := range s.snaps {
		if other.row.Owner == owner {
			n++
		}
	}
	if limit := s.o.Limits.Snapshots; limit > 0 && n >= limit {
		return nil, &QuotaError{What: "paused sandboxes and snapshots of this key", Max: limit, RetryAfter: retryOwn}
	}
	s.snaps[sn.row.ID] = sn
	return sn, nil
}

// forgetSnap forgets a snapshot that could not be written down.
func (s *Service) forgetSnap(sn *snap) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.snaps, sn.row.ID)
}

// readSnap is a snapshot as the database has it.
func readSnap(row store.Snapshot) (*snap, error) {
	sn := &snap{row: row, doomed: row.Kind != store.KindUser || row.State != store.Ready}
	if err := wire.Decode(row.Spec, &sn.spec); err != nil {
		return nil, fmt.Errorf("cannot read snapshot %.40q: %w", row.ID, err)
	}
	return sn, nil
}

// snap finds a snapshot by its name; nil for none.
func (s *Service) snap(name string) *snap {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.snaps[name]
}

// take counts a use of a snapshot, unless it goes already.
func (s *Service) take(sn *snap) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn.doomed && sn.refs == 0 {
		return false
	}
	sn.refs++
	return true
}

// drop ends a use of a snapshot, which may be nil. A doomed one goes with the last.
func (s *Service) drop(sn *snap) {
	if sn == nil {
		return
	}
	s.mu.Lock()
	sn.refs--
	gone := sn.refs == 0 && sn.doomed
	s.mu.Unlock()
	if gone {
		s.remove(sn)
	}
}

// remove removes a snapshot that nobody uses: its files, and then its row.
func (s *Service) remove(sn *snap) {
	err := s.o.Snapshots.Remove(sn.row.ID)
	if errors.Is(err, snapstore.ErrNotFound) {
		err = nil
	}
	if err == nil {
		err = s.apply(store.Change{DropSnapshot: sn.row.ID})
	}
	s.mu.Lock()
	s.unpinLocked(sn)
	delete(s.snaps, sn.row.ID)
	s.mu.Unlock()
	if err != nil {
		// The row stays, so that the next start tries again.
		s.log.LogAttrs(s.ctx, slog.LevelWarn, "cannot remove snapshot", slog.String("snapshot", sn.row.ID), slog.Any("error", err))
	}
}

// A source is what a sandbox is made of.
type source struct {
	template, alias string
	image           string // of the store, unless there is a snapshot
	snap            *snap  // taken
	vcpus, memory   int
	disk            int
}

// fits reports an error unless the sandbox can be made of it, and takes over what the
// options say of its shape.
func (src *source) fits(o *CreateOptions) error {
	if src.snap != nil && (o.MemoryMiB != 0 && o.MemoryMiB != src.memory || o.VCPUs != 0 && o.VCPUs != src.vcpus) {
		return fmt.Errorf("%w: snapshot %s has %d MiB and %d processors, which cannot be changed", ErrInvalid, src.template, src.memory, src.vcpus)
	}
	if o.MemoryMiB != 0 {
		src.memory = o.MemoryMiB
	}
	if o.VCPUs != 0 {
		src.vcpus = o.VCPUs
	}
	return nil
}

// source finds a template or snapshot, which the caller has to drop then.
func (s *Service) source(ctx context.Context, owner Owner, name string) (source, error) {
	if sn := s.userSnap(owner, name); sn != nil && s.take(sn) {
		return source{template: sn.public(), alias: sn.alias(), snap: sn, vcpus: sn.spec.VCPUs, memory: sn.spec.MemoryMiB, disk: sn.spec.Disk}, nil
	}
	t, err := s.imageTemplate(ctx, name)
	if err != nil {
		return source{}, err
	}
	return source{template: t.ID, alias: t.Names[0], image: t.Image, vcpus: t.VCPUs, memory: t.MemoryMiB, disk: s.o.DiskMiB}, nil
}

// defaultTag is the tag of what has none.
const defaultTag = ":default"

// public is the ID of a snapshot as users see it.
func (sn *snap) public() string { return sn.row.ID + defaultTag }

func (sn *snap) alias() string {
	if len(sn.row.Names) == 0 {
		return ""
	}
	return strings.TrimSuffix(sn.row.Names[0], defaultTag)
}

// userSnap finds a snapshot of an owner by its ID or any of its names; nil if there is
// none.
func (s *Service) userSnap(owner Owner, name string) *snap {
	id := strings.TrimSuffix(name, defaultTag)
	full := id
	if !strings.Contains(full, ":") {
		full += defaultTag
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if sn := s.snaps[id]; sn != nil && sn.offered(owner) {
		return sn
	}
	var found *snap
	for _, sn := range s.snaps {
		// One's own names come before those of others, which an administrator sees.
		if sn.offered(owner) && slices.Contains(sn.row.Names, full) && (found == nil || sn.row.Owner == owner.ID) {
			found = sn
		}
	}
	return found
}

// offered reports whether an owner may make sandboxes of it.
func (sn *snap) offered(owner Owner) bool {
	return sn.row.Kind == store.KindUser && sn.row.State == store.Ready && !sn.doomed && owner.owns(sn.row.Owner)
}
