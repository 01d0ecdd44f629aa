package daemon

import (
	"fmt"
	"runtime"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

// Limits bound the machines that there are at once. Paused sandboxes have none.
type Limits struct {
	// PerOwner bounds those of one owner; DefaultPerOwner when 0, no bound when negative.
	PerOwner int
	// MemoryMiB bounds the sum of their memory. When 0 it is twice what this host, or the
	// daemon's cgroup, has: few sandboxes use all of theirs, and each has a limit of its
	// own. No bound when negative.
	MemoryMiB int
	// VCPUs bounds the sum of their processors: 64 for each of this host when 0, no bound
	// when negative.
	VCPUs int
	// Snapshots bounds the paused sandboxes and snapshots of one owner, which are on the
	// disk; DefaultSnapshots when 0, no bound when negative.
	Snapshots int
}

const (
	// DefaultPerOwner is how many running sandboxes an owner may have.
	DefaultPerOwner = 100
	// DefaultSnapshots is how many paused sandboxes and snapshots an owner may have.
	DefaultSnapshots = 1000
	memoryFactor     = 2
	vcpuFactor       = 64
	// retryOwn and retryHost are when to try again: what is one's own one can end.
	retryOwn  = 10 * time.Second
	retryHost = 2 * time.Second
)

// A load is what the machines that there are have been given.
type load struct{ memory, vcpus int }

func (l Limits) withDefaults() (Limits, error) {
	if l.PerOwner == 0 {
		l.PerOwner = DefaultPerOwner
	}
	if l.Snapshots == 0 {
		l.Snapshots = DefaultSnapshots
	}
	if l.VCPUs == 0 {
		l.VCPUs = vcpuFactor * runtime.NumCPU()
	}
	if l.MemoryMiB == 0 {
		mib, err := hostMemory()
		if err != nil {
			return Limits{}, fmt.Errorf("cannot find out how much memory there is, set a limit: %w", err)
		}
		l.MemoryMiB = memoryFactor * mib
	}
	return l, nil
}

// admitted reports an error if the service ends.
func (s *Service) admitted() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return ErrDraining
	}
	return nil
}

func (s *Service) reserve(b *box) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserveLocked(b)
}

// reserveLocked counts the machine that a box is to have.
func (s *Service) reserveLocked(b *box) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	memory, vcpus, l := b.rec.Sandbox.MemoryMiB, b.rec.Sandbox.VCPUs, &s.o.Limits
	switch {
	case s.draining:
		return ErrDraining
	case l.PerOwner > 0 && s.owners[b.owner] >= l.PerOwner:
		return &QuotaError{What: "sandboxes of this key", Max: l.PerOwner, RetryAfter: retryOwn}
	case l.MemoryMiB > 0 && s.load.memory+memory > l.MemoryMiB:
		return &QuotaError{What: "memory of this host in MiB", Max: l.MemoryMiB, RetryAfter: retryHost}
	case l.VCPUs > 0 && s.load.vcpus+vcpus > l.VCPUs:
		return &QuotaError{What: "processors of this host", Max: l.VCPUs, RetryAfter: retryHost}
	}
	s.countLocked(b, 1)
	return nil
}

// countLocked counts the machine of a box, which is locked, too.
func (s *Service) countLocked(b *box, n int) {
	s.load.memory += n * b.rec.Sandbox.MemoryMiB
	s.load.vcpus += n * b.rec.Sandbox.VCPUs
	if s.owners[b.owner] += n; s.owners[b.owner] == 0 {
		delete(s.owners, b.owner)
	}
	b.reserved = n > 0
}

// unreserve ends what reserve began.
func (s *Service) unreserve(b *box) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reserved {
		s.countLocked(b, -1)
	}
}

// Counts are how many sandboxes there are, for the metrics.
type Counts struct {
	Running, Paused, Creating int
	MemoryMiB, VCPUs          int // of the machines that there are
	Snapshots                 int
}

// Counts counts what there is.
func (s *Service) Counts() Counts {
	var c Counts
	for _, b := range s.every() {
		switch b.record().state {
		case store.Creating:
			c.Creating++
		case store.Paused, store.Resuming:
			c.Paused++
		case store.Running, store.Pausing:
			c.Running++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.MemoryMiB, c.VCPUs, c.Snapshots = s.load.memory, s.load.vcpus, len(s.snaps)
	return c
}
