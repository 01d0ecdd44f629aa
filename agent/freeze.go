package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// syncTime bounds the flush of the file systems.
const syncTime = 20 * time.Second

// callFreeze stops the guest's processes and flushes its file systems, so that a copy
// of the machine holds nothing half done, and nothing runs in it before its thaw. It
// stays frozen when the connection ends: in a copy it always has.
func callFreeze(ctx context.Context, s *Server, _ json.RawMessage) (any, error) {
	select {
	case s.freezing <- struct{}{}:
		defer func() { <-s.freezing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	again := s.frozen()
	n, err := s.proc.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.flush(ctx); err != nil {
		if !again {
			s.proc.Thaw()
		}
		return nil, fmt.Errorf("cannot freeze: %w", err)
	}
	s.mu.Lock()
	s.before = maps.Clone(s.conns)
	s.mu.Unlock()
	s.log.Info("frozen", slog.Int("processes", n))
	return wire.FreezeResult{Stopped: n}, nil
}

// flush writes to the disks what is in memory. A disk that does not answer holds up
// one thread, and not the answer.
func (s *Server) flush(ctx context.Context) error {
	if s.system == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, syncTime, fmt.Errorf("the file systems are not flushed within %v", syncTime))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- s.system.Sync() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// frozen reports whether processes are frozen.
func (s *Server) frozen() bool {
	select {
	case <-s.proc.Thawed():
		return false
	default:
		return true
	}
}

// leave ends the connections that were open when the guest was frozen, and the
// commands that run for them: in a copy their host is another's.
func (s *Server) leave() error {
	s.mu.Lock()
	before := s.before
	var ends []net.Conn
	for c := range s.conns {
		if _, ok := before[c]; ok {
			ends = append(ends, c)
		}
	}
	s.mu.Unlock()
	for _, c := range ends {
		_ = c.Close()
	}
	late := time.NewTimer(leaveTime)
	defer late.Stop()
	tick := time.NewTicker(leavePoll)
	defer tick.Stop()
	for s.anyOpen(ends) {
		select {
		case <-tick.C:
		case <-late.C:
			return errors.New("commands of the snapshot's host do not end")
		}
	}
	return nil
}

// Bounds of the wait for the ends of connections. Killing a command takes two seconds
// at most.
const (
	leaveTime = 5 * time.Second
	leavePoll = time.Millisecond
)

func (s *Server) anyOpen(conns []net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range conns {
		if _, ok := s.conns[c]; ok {
			return true
		}
	}
	return false
}

// whenThawed waits until nothing is frozen, for those who write what is on its way.
func (s *Server) whenThawed(ctx context.Context) {
	select {
	case <-s.proc.Thawed():
	case <-ctx.Done():
	case <-s.done:
	}
}

// errFrozen refuses what would change a guest that is being copied.
var errFrozen error = &wire.RPCError{Code: wire.CodeFrozen, Message: frozenText}

const frozenText = "the guest is frozen for a snapshot: thaw it, or wait until its host has"

// refusedFrozen are the errors of a frozen guest, in the words of one.
func refusedFrozen(err error) error {
	if errors.Is(err, proc.ErrFrozen) {
		return errFrozen
	}
	return err
}
