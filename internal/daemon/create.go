package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/store"
)

func (o *CreateOptions) validate() error {
	switch {
	case o.TTL < 0 || o.TTL > MaxTTL:
		return fmt.Errorf("%w: a timeout of %v is outside 0..%v", ErrInvalid, o.TTL, MaxTTL)
	case o.OnTimeout != "" && o.OnTimeout != TimeoutKills && o.OnTimeout != TimeoutPauses:
		return fmt.Errorf("%w: %.40q is nothing that can become of a sandbox", ErrInvalid, string(o.OnTimeout))
	case o.MemoryMiB < 0 || o.VCPUs < 0:
		return fmt.Errorf("%w: memory and processors cannot be negative", ErrInvalid)
	case o.Network.AllowPublicTraffic != nil && !*o.Network.AllowPublicTraffic && !o.Secure:
		return fmt.Errorf("%w: traffic that is not public needs a secure sandbox", ErrInvalid)
	}
	return errors.Join(boundMap("metadata", o.Metadata), boundMap("environment", o.Env))
}

func boundMap(what string, m map[string]string) error {
	if len(m) > MaxMetadata {
		return fmt.Errorf("%w: %s has %d entries, at most %d are allowed", ErrInvalid, what, len(m), MaxMetadata)
	}
	n := 0
	for k, v := range m {
		n += len(k) + len(v)
	}
	if n > MaxMetadataBytes {
		return fmt.Errorf("%w: %s has %d bytes, at most %d are allowed", ErrInvalid, what, n, MaxMetadataBytes)
	}
	return nil
}

// Create makes a sandbox and returns when it can be used. When ctx ends first nothing of
// it is left. It fails with ErrNotFound for an unknown template, ErrInvalid, ErrQuota or
// ErrDraining.
func (s *Service) Create(ctx context.Context, owner Owner, o CreateOptions) (Sandbox, error) {
	if err := o.validate(); err != nil {
		return Sandbox{}, err
	}
	if o.OnTimeout == TimeoutPauses {
		if err := s.canSave(o.PauseMemory); err != nil {
			return Sandbox{}, err
		}
	}
	src, err := s.source(ctx, owner, o.Template)
	if err != nil {
		return Sandbox{}, err
	}
	if err := src.fits(&o); err != nil {
		s.drop(src.snap)
		return Sandbox{}, err
	}
	ttl := o.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	rec := record{
		TTL: ttl, Image: src.image, Disk: src.disk, state: store.Creating,
		Sandbox: Sandbox{
			ID: newID(), Owner: owner.ID, Template: src.template, Alias: src.alias,
			VCPUs: src.vcpus, MemoryMiB: src.memory, DiskMiB: src.memory,
			Metadata: maps.Clone(o.Metadata), Env: maps.Clone(o.Env),
			OnTimeout: o.OnTimeout, PauseMemory: o.PauseMemory, AutoResume: o.AutoResume, Network: o.Network,
		},
	}
	if rec.Sandbox.OnTimeout == "" {
		rec.Sandbox.OnTimeout = TimeoutKills
	}
	if src.disk != 0 {
		rec.Sandbox.DiskMiB = src.disk
	}
	rec.secrets(o.Secure)
	return s.launch(ctx, rec, src.snap, owner.ID, "created", "of template "+src.template)
}

// secrets gives a sandbox tokens of its own.
func (r *record) secrets(secure bool) {
	r.Sandbox.AccessToken, r.Sandbox.TrafficToken = "", ""
	if secure {
		r.Sandbox.AccessToken = newToken()
	}
	if public := r.Sandbox.Network.AllowPublicTraffic; public != nil && !*public {
		r.Sandbox.TrafficToken = newToken()
	}
}

// launch makes a sandbox of a record, of a snapshot if there is one, which the caller has
// taken and launch gives back in the end.
func (s *Service) launch(ctx context.Context, rec record, from *snap, by, kind, detail string) (Sandbox, error) {
	b := s.newBox(rec)
	if err := s.enter(b); err != nil {
		s.drop(from)
		return Sandbox{}, err
	}
	err := b.do(ctx, opCreate, createTimeout, true, nil, func(ctx context.Context) error {
		return b.make(ctx, from, by, kind, detail)
	})
	if err != nil {
		return Sandbox{}, err
	}
	if err := context.Cause(ctx); err != nil {
		// Nobody learns of it.
		s.endLater(b, "killed", byDaemon, "its creation was given up")
		return Sandbox{}, err
	}
	return b.view(), nil
}

// enter lets a new box in, if the limits do.
func (s *Service) enter(b *box) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.reserveLocked(b); err != nil {
		return err
	}
	s.boxes[b.id] = b
	return nil
}

// leave forgets a box.
func (s *Service) leave(b *box) {
	s.mu.Lock()
	delete(s.boxes, b.id)
	s.mu.Unlock()
	s.unreserve(b)
	close(b.gone)
}

// make makes the machine of a new sandbox. When it fails nothing is left, in the
// database neither.
func (b *box) make(ctx context.Context, from *snap, by, kind, detail string) (err error) {
	s := b.s
	machine := store.Machine{ID: bouvet.NewSandboxID().String(), Sandbox: string(b.id), Base: from.name(), Made: time.Now()}
	var made *bouvet.Sandbox
	free := func() { s.drop(from) }
	defer func() {
		if err == nil {
			return
		}
		if made != nil {
			s.destroy(made.ID())
		}
		free()
		if ferr := s.apply(store.Change{Forget: string(b.id), DropMachine: machine.ID}); ferr != nil {
			s.log.LogAttrs(ctx, slog.LevelWarn, "cannot forget sandbox that was not made", slog.String("id", string(b.id)), slog.Any("error", ferr))
		}
		b.mu.Lock()
		b.rec.state, b.doomed = store.Ended, true
		b.mu.Unlock()
		s.leave(b)
		s.o.Failpoint("create:undone")
	}()
	if err = b.write(store.Change{Insert: &store.Sandbox{}, AddMachine: &machine}, func(r *record) { r.base = from.name(); r.Sandbox.StartedAt = time.Now() }); err != nil {
		return err
	}
	s.o.Failpoint("create:intent")
	if made, free, err = s.boot(ctx, machine.ID, b.record(), from); err != nil {
		free = func() { s.drop(from) }
		return err
	}
	s.o.Failpoint("create:made")
	if err = context.Cause(ctx); err != nil {
		return err
	}
	now := time.Now()
	if err = b.write(store.Change{Events: []store.Event{event(b.id, kind, by, detail)}}, func(r *record) {
		r.state = store.Running
		r.Sandbox.StartedAt, r.Sandbox.EndAt = now, now.Add(r.TTL)
	}); err != nil {
		return err
	}
	b.running(made, free)
	s.o.Failpoint("create:running")
	return nil
}

// boot makes a machine for a sandbox, of a snapshot if there is one, which free gives
// back when the machine is gone. When it fails the snapshot is still the caller's.
func (s *Service) boot(ctx context.Context, id string, rec record, from *snap) (_ *bouvet.Sandbox, free func(), err error) {
	machine, err := bouvet.ParseSandboxID(id)
	if err != nil {
		return nil, nil, err
	}
	cfg := s.config(machine, &rec)
	select {
	case s.boots <- struct{}{}:
		defer func() { <-s.boots }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	if from == nil {
		made, err := s.o.Manager.CreateSandbox(ctx, cfg)
		return made, func() {}, err
	}
	dir, release, err := s.o.Snapshots.Acquire(from.row.ID)
	if err != nil {
		return nil, nil, err
	}
	made, err := s.o.Manager.Restore(ctx, dir, cfg)
	if err != nil {
		release()
		return nil, nil, err
	}
	return made, func() { release(); s.drop(from) }, nil
}

// config is what the library is told of a sandbox.
func (s *Service) config(machine bouvet.SandboxID, rec *record) bouvet.Config {
	return bouvet.Config{
		ID: machine, Hostname: string(rec.Sandbox.ID), Image: rec.Image,
		MemoryMiB: rec.Sandbox.MemoryMiB, VCPUs: rec.Sandbox.VCPUs, DiskMiB: rec.Disk,
		Detached: s.o.Adopt != nil,
	}
}
