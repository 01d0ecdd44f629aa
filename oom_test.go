package bouvet

import (
	"errors"
	"syscall"
	"testing"
)

// T02: a kill counts as one for memory if the host has killed since the command began,
// and nothing else does.
func TestBlame(t *testing.T) {
	kills := 3
	s := &session{client: &AgentClient{oomKills: func() int { return kills }}, oomKills: kills}
	for _, tt := range []struct {
		name  string
		err   error
		more  int
		blame bool
	}{
		{"killed", &ExitError{Code: -1, Signal: syscall.SIGKILL}, 1, true},
		{"a shell's command killed", &ExitError{Code: 137}, 1, true},
		{"killed by another", &ExitError{Code: -1, Signal: syscall.SIGKILL}, 0, false},
		{"ended by another signal", &ExitError{Code: -1, Signal: syscall.SIGTERM}, 1, false},
		{"its time was up", &ExitError{Code: -1, Signal: syscall.SIGKILL, TimedOut: true}, 1, false},
		{"failed", &ExitError{Code: 1}, 1, false},
	} {
		kills = 3 + tt.more
		var exit *ExitError
		if err := s.blame(tt.err); !errors.As(err, &exit) || exit.OOMKilled != tt.blame {
			t.Errorf("%s: got %#v, want OOMKilled %v", tt.name, err, tt.blame)
		}
	}
	for _, err := range []error{nil, ErrConnection} {
		if got := s.blame(err); !errors.Is(got, err) {
			t.Errorf("got %v, want %v", got, err)
		}
	}
}
