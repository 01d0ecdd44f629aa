package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// states returns the states of the processes with the marker, one letter each.
func states(marker string) string {
	var b strings.Builder
	for _, pid := range living(marker) {
		if r, ok := readRelative(pid); ok {
			b.WriteByte(r.state)
		}
	}
	return b.String()
}

func frozen(t *testing.T, marker string, n int) {
	t.Helper()
	if got := states(marker); got != strings.Repeat("T", n) {
		t.Errorf("states of the processes: got %s, want %d times T", got, n)
	}
}

// A family of processes stands still and goes on, with nothing lost; those that were
// stopped before stay so.
func TestFreeze(t *testing.T) {
	m := newManager(t, Options{})
	mark := fmt.Sprintf("freeze-%d", os.Getpid())
	// The second child leaves the session; the third is stopped by its user.
	p := start(t, m, Spec{Stdin: true, Args: sh(`
		sh -c 'while :; do sleep 0.01; done' "$1" & setsid sh -c 'while :; do sleep 0.01; done' "$1" &
		sh -c 'kill -STOP $$' "$1" & echo up; cat; kill $(jobs -p)`, mark)})
	defer p.Kill()
	if b := make([]byte, 3); !readFull(p, b) {
		t.Fatal("it does not start")
	}
	eventually(t, "four run, one of them stopped", func() bool { return len(living(mark)) == 4 && strings.Count(states(mark), "T") == 1 })

	for range 2 { // to freeze what is frozen changes nothing
		n, err := m.Freeze(t.Context())
		if err != nil || n < 3 {
			t.Fatalf("Freeze: got %d, %v, want 3 or more: sh three times, and maybe cat and sleep", n, err)
		}
	}
	frozen(t, mark, 4)
	if _, err := m.Start(Spec{Args: sh("true")}); !errors.Is(err, ErrFrozen) {
		t.Errorf("Start: got %v, want ErrFrozen", err)
	}
	for _, group := range []bool{false, true} {
		if err := p.Signal(unix.SIGCONT, group); !errors.Is(err, ErrFrozen) {
			t.Errorf("Signal: got %v, want ErrFrozen", err)
		}
	}
	select {
	case <-m.Thawed():
		t.Error("Thawed is closed")
	default:
	}
	frozen(t, mark, 4)

	m.Thaw()
	<-m.Thawed()
	m.Thaw()
	eventually(t, "all but the one run", func() bool { return strings.Count(states(mark), "T") == 1 })
	if _, err := p.Stdin().Write([]byte("still here")); err != nil {
		t.Error(err)
	}
	if b := make([]byte, 10); !readFull(p, b) || string(b) != "still here" {
		t.Errorf("got %q", b)
	}
}

func readFull(p *Process, b []byte) bool {
	for n := 0; n < len(b); {
		k, err := p.Stdout().Read(b[n:])
		if n += k; err != nil {
			return false
		}
	}
	return true
}

// What is killed while it is frozen ends, and one that is started afterwards runs.
func TestFreezeKill(t *testing.T) {
	m := newManager(t, Options{})
	mark := fmt.Sprintf("freeze-kill-%d", os.Getpid())
	p := start(t, m, Spec{Args: sh("sleep 4711 & wait", mark)})
	if _, err := m.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	await(t, p)
	m.Thaw()
	if out, _, status := run(t, m, Spec{Args: sh("echo up")}); out != "up\n" || status.ExitCode != 0 {
		t.Errorf("got %q, %+v", out, status)
	}
}

// A freeze that is cancelled leaves everything running.
func TestFreezeCancelled(t *testing.T) {
	m := newManager(t, Options{})
	mark := fmt.Sprintf("freeze-cancel-%d", os.Getpid())
	p := start(t, m, Spec{Args: sh("sleep 4711 & wait", mark)})
	defer p.Kill()
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("no longer wanted")
	cancel(reason)
	if _, err := m.Freeze(ctx); !errors.Is(err, reason) {
		t.Fatalf("got %v, want %v", err, reason)
	}
	<-m.Thawed()
	eventually(t, "it runs", func() bool { return !strings.Contains(states(mark), "T") })
}

// A shell that controls jobs never learns that its job stood still, and a terminal
// stays in use.
func TestFreezeJobControl(t *testing.T) {
	m := newManager(t, Options{})
	p := start(t, m, Spec{TTY: true, Args: []string{"sh", "-imc", `echo up; sleep 0.3; echo "code $?"`}})
	defer p.Kill()
	if b := make([]byte, 4); !readFull(p, b) {
		t.Fatal("it does not start")
	}
	for range 20 {
		if _, err := m.Freeze(t.Context()); err != nil {
			t.Fatal(err)
		}
		m.Thaw()
	}
	out := readAll(t, p.Stdout())
	await(t, p)
	if !strings.Contains(out, "code 0") || strings.Contains(strings.ToLower(out), "stopped") {
		t.Errorf("got %q, want no stop", out)
	}
}

// Parents come before children, in a table in any order and even in one that is not
// a tree; threads of the kernel are none of the guest's.
func TestMembers(t *testing.T) {
	m := newManager(t, Options{Guest: true})
	all := []relative{{pid: 9, parent: 7}, {pid: 7, parent: 5}, {pid: 2, kernel: true}, {pid: 5, parent: 1}, {pid: 20, parent: 21}, {pid: 21, parent: 20}}
	var got []int
	for _, r := range m.members(all) {
		got = append(got, r.pid)
	}
	if fmt.Sprint(got) != "[5 7 9 20 21]" {
		t.Errorf("got %v", got)
	}
}

// A process stops after its parent has.
func TestStopParentsFirst(t *testing.T) {
	m := newManager(t, Options{})
	parent, child := start(t, m, Spec{Args: []string{"sleep", "4711"}}), start(t, m, Spec{Args: []string{"sleep", "4711"}})
	defer parent.Kill()
	defer child.Kill()
	stopped := map[int]uint64{}
	stop([]relative{{pid: parent.PID(), parent: 1}, {pid: child.PID(), parent: parent.PID()}}, stopped)
	if _, ok := stopped[parent.PID()]; !ok || len(stopped) != 1 {
		t.Errorf("stopped: %v, want %d alone", stopped, parent.PID())
	}
	stop([]relative{{pid: child.PID(), parent: parent.PID()}}, stopped)
	if len(stopped) != 2 {
		t.Errorf("stopped: %v, want %d, too", stopped, child.PID())
	}
}
