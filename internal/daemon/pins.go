package daemon

import (
	"context"
	"log/slog"

	"github.com/bouvet-run/bouvet"
)

// A pin holds an image that snapshots were made on: without it nothing can be made of
// them, even if its name stands for a newer one by now.
type pin struct {
	image bouvet.Image
	n     int // snapshots
}

// pin holds the image of a snapshot until it is removed.
func (s *Service) pin(ctx context.Context, sn *snap) {
	if s.o.Pins == nil {
		return
	}
	info, err := s.o.Snapshots.Inspect(sn.row.ID)
	if err != nil || info.Manifest == nil || info.Manifest.Image == "" {
		return // it is found out when it is used
	}
	digest := info.Manifest.Image
	if s.pinAgain(sn, digest) {
		return
	}
	image, err := s.o.Pins.Acquire(ctx, digest)
	if err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "image of snapshot cannot be held", slog.String("snapshot", sn.row.ID), slog.String("image", digest), slog.Any("error", err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.pins[digest]; p != nil { // somebody else was as quick
		image.Release()
		p.n++
	} else {
		s.pins[digest] = &pin{image: image, n: 1}
	}
	sn.image = digest
}

// pinAgain counts one more snapshot of an image that is held.
func (s *Service) pinAgain(sn *snap, digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pins[digest]
	if p != nil {
		p.n++
		sn.image = digest
	}
	return p != nil
}

// unpinLocked ends what pin began.
func (s *Service) unpinLocked(sn *snap) {
	p := s.pins[sn.image]
	if p == nil {
		return
	}
	if p.n--; p.n == 0 {
		delete(s.pins, sn.image)
		p.image.Release()
	}
	sn.image = ""
}

// unpin gives all images back.
func (s *Service) unpin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sn := range s.snaps {
		s.unpinLocked(sn)
	}
}
