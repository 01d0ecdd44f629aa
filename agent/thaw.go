package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// A System is what an agent that has its machine, or its sandbox, for itself renews
// of it when a copy begins to run.
type System interface {
	// Sync flushes the file systems.
	Sync() error
	// AddEntropy credits a seed to the kernel's pool and has it used at once.
	AddEntropy(seed []byte) error
	// SetClock sets the wall clock.
	SetClock(now time.Time) error
	// SetHostname sets the host name.
	SetHostname(name string) error
	// RenewMachineID makes up a new /etc/machine-id, if there is one.
	RenewMachineID() error
	// ForgetSeed removes the random seed that is kept for the next boot.
	ForgetSeed() error
}

// callThaw makes a machine another one than that it is a copy of, and then lets its
// processes go on. If any part fails they stay frozen. Of an agent that is not frozen
// it renews the same.
func callThaw(ctx context.Context, s *Server, params json.RawMessage) (any, error) {
	var p wire.ThawParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if err := checkThaw(&p); err != nil {
		return nil, err
	}
	select {
	case s.freezing <- struct{}{}:
		defer func() { <-s.freezing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	received := time.Now()
	for _, step := range []struct {
		name   string
		wanted bool
		do     func(System) error
	}{
		// The pool first: all that is random after it is the copy's own.
		{"entropy", true, func(y System) error { return y.AddEntropy(p.Entropy) }},
		{"clock", true, func(y System) error { return y.SetClock(time.Unix(0, p.UnixNS).Add(time.Since(received))) }},
		{"host name", p.Hostname != "", func(y System) error { return y.SetHostname(p.Hostname) }},
		{"machine-id", p.Clone, System.RenewMachineID},
		{"random seed", p.Clone, System.ForgetSeed},
	} {
		if !step.wanted || s.system == nil {
			continue
		}
		if err := step.do(s.system); err != nil {
			return nil, fmt.Errorf("cannot thaw: %s: %w", step.name, err)
		}
	}
	if p.Clone {
		if err := s.leave(); err != nil {
			return nil, fmt.Errorf("cannot thaw: connections: %w", err)
		}
	}
	s.mu.Lock()
	s.before = nil
	s.mu.Unlock()
	s.proc.Thaw()
	s.log.Info("thawed", slog.Bool("clone", p.Clone))
	return wire.Empty{}, nil
}

func checkThaw(p *wire.ThawParams) error {
	switch {
	case len(p.Entropy) < wire.MinEntropy || len(p.Entropy) > wire.MaxEntropy:
		return invalid("entropy of %d bytes is not within %d..%d", len(p.Entropy), wire.MinEntropy, wire.MaxEntropy)
	case p.UnixNS <= 0:
		return invalid("unix_ns of %d is not after 1970", p.UnixNS)
	case len(p.Hostname) > maxHostname || strings.Trim(p.Hostname, hostnameChars) != "":
		return invalid("hostname %q has not at most %d characters of A-Z a-z 0-9 . -", shorten(p.Hostname, maxHostname), maxHostname)
	}
	return nil
}

// What a host name is made of, and its length in Linux (utsname).
const (
	maxHostname   = 64
	hostnameChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-"
)
