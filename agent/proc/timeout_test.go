package proc

import (
	"strings"
	"testing"
	"time"
)

// T14: who is asked to end may say goodbye, and who does not end is killed, with all
// that it started. It has timed out either way.
func TestTimeout(t *testing.T) {
	for _, tt := range []struct {
		name, script, stdout string
		signal               int
	}{
		{"obeys", "exec sleep MARK", "", 15},
		{"says goodbye", "trap 'echo bye; exit 3' TERM; sleep MARK & wait", "bye\n", 0},
		{"says goodbye and that all is well", "trap 'exit 0' TERM; sleep MARK & wait", "", 0},
		{"ignores it", "trap '' TERM; sleep MARK & wait", "", 9},
		{"is stopped", "sleep MARK & kill -STOP $$", "", 9},
		{"child in a session of its own", "setsid sleep MARK & wait", "", 15},
		{"child ignores it", "sh -c \"trap '' TERM; sleep MARK; :\" & wait", "", 15},
		{"child in a session of its own ignores it", "setsid sh -c \"trap '' TERM; sleep MARK; :\" & wait", "", 15},
		{"starts one more when asked to end", "trap 'sleep MARK & exit' TERM; sleep MARK & wait", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newManager(t, Options{})
			mark := marker(t)
			stdout, _, status := run(t, m, Spec{Args: sh(strings.ReplaceAll(tt.script, "MARK", mark)), Timeout: 200 * time.Millisecond})
			if want := (Status{ExitCode: -1, Signal: tt.signal, TimedOut: true}); status != want || stdout != tt.stdout {
				t.Errorf("got %+v, %q, want %+v, %q", status, stdout, want, tt.stdout)
			}
			eventually(t, "nothing of it is left", func() bool { return len(living(mark)) == 0 })
		})
	}
}

func TestTimeoutThatDoesNotStrike(t *testing.T) {
	m := newManager(t, Options{})
	if _, _, status := run(t, m, Spec{Args: []string{"true"}, Timeout: time.Hour}); status != (Status{}) {
		t.Errorf("got %+v", status)
	}
}

// A Kill does not wait for those who say goodbye.
func TestKillAfterTimeout(t *testing.T) {
	m := newManager(t, Options{})
	mark := marker(t)
	p := start(t, m, Spec{Args: sh("trap 'echo asked; sleep " + mark + " & wait' TERM; echo ready; sleep " + mark + " & wait; wait"), Timeout: 300 * time.Millisecond})
	line := make([]byte, len("ready\nasked\n"))
	for n := 0; n < len(line); {
		k, err := p.Stdout().Read(line[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	p.Kill()
	if left := living(mark); len(left) > 0 {
		t.Errorf("processes are left after Kill: %v", left)
	}
	readAll(t, p.Stdout())
	readAll(t, p.Stderr())
	await(t, p)
	if got, want := p.Status(), (Status{ExitCode: -1, Signal: 9, TimedOut: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A timeout does not wait for a thaw, and nothing goes on running for it.
func TestTimeoutWhileFrozen(t *testing.T) {
	m := newManager(t, Options{})
	mark := marker(t)
	p := start(t, m, Spec{Args: sh("trap 'echo asked' TERM; echo ready; sleep " + mark + " & wait"), Timeout: time.Second})
	line := make([]byte, len("ready\n"))
	if _, err := p.Stdout().Read(line); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer m.Thaw()
	if got := readAll(t, p.Stdout()); got != "" {
		t.Errorf("got %q of a frozen process", got)
	}
	readAll(t, p.Stderr())
	await(t, p)
	if got, want := p.Status(), (Status{ExitCode: -1, Signal: 9, TimedOut: true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	eventually(t, "nothing of it is left", func() bool { return len(living(mark)) == 0 })
}
