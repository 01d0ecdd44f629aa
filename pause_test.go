package bouvet_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
)

// A paused sandbox does nothing but wait, and its commands wait with it.
func TestPause(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	ctx := t.Context()
	c := s.Command(ctx, "cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		if got := s.State(); got != bouvet.Paused {
			t.Errorf("got state %v, want paused", got)
		}
	}
	for what, do := range map[string]func() error{
		"Execute":   func() error { _, err := s.Execute(ctx, "true"); return err },
		"ReadFile":  func() error { _, err := s.ReadFile(ctx, "/etc/passwd"); return err },
		"WriteFile": func() error { return s.WriteFile(ctx, dir+"/x", "x") },
		"ListDir":   func() error { _, err := s.ListDir(ctx, dir); return err },
		"Run":       func() error { return s.Command(ctx, "true").Run() }, //nolint:contextcheck // the connection dialled ahead is the client's.
		"Snapshot":  func() error { return s.Snapshot(ctx, private(t)) },
		"Fork":      func() error { _, err := s.Fork(ctx, 1); return err },
	} {
		var state *bouvet.InvalidStateError
		if err := do(); !errors.As(err, &state) || state.Expected != bouvet.Ready || state.Actual != bouvet.Paused {
			t.Errorf("%s: got %v, want an invalid state: paused", what, err)
		}
	}
	if _, err := io.WriteString(in, "through\n"); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := s.Resume(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.State(); got != bouvet.Executing {
		t.Errorf("got state %v, want executing", got)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "through\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if err := errors.Join(in.Close(), c.Wait()); err != nil {
		t.Error(err)
	}
	if err := s.Pause(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(ctx); err != nil {
		t.Errorf("Destroy of a paused sandbox: %v", err)
	}
	for what, do := range map[string]func(context.Context) error{"Pause": s.Pause, "Resume": s.Resume} {
		if err := do(ctx); !errors.Is(err, bouvet.ErrInvalidState) {
			t.Errorf("%s after Destroy: got %v, want an invalid state", what, err)
		}
	}
}

// The host's part of a command's timeout stands still in a pause.
func TestPauseTimeout(t *testing.T) {
	// An agent that never ends a command: only the host's timeout can.
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: unending})
	s, err := newManager(t, fake, bouvet.ManagerOptions{}).CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Command(t.Context(), "forever")
	c.Timeout = 300 * time.Millisecond // an agent without extensions gets no grace
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	select {
	case err := <-ended:
		t.Errorf("it ended in the pause: %v", err)
	case <-time.After(600 * time.Millisecond):
	}
	if err := s.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, bouvet.ErrTimedOut) {
		t.Errorf("got %v, want a timeout", err)
	}
}

// A pause that fails leaves the sandbox as it was.
func TestPauseFails(t *testing.T) {
	boom := errors.New("boom")
	fails := map[string]bool{}
	var mu sync.Mutex
	set := func(point string, fail bool) { mu.Lock(); defer mu.Unlock(); fails[point] = fail }
	faulty := vmtest.NewFaulty(vmtest.NewFake(t, vmtest.FakeOptions{}), func(point string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		if fails[point] {
			return boom
		}
		return nil
	})
	s, err := newManager(t, faulty, bouvet.ManagerOptions{}).CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	set(vmtest.BeforePause, true)
	if err := s.Pause(t.Context()); !errors.Is(err, boom) || !errors.Is(err, bouvet.ErrVM) {
		t.Errorf("Pause: got %v", err)
	}
	if _, err := s.Execute(t.Context(), "true"); err != nil {
		t.Errorf("after a failed Pause: %v", err)
	}
	set(vmtest.BeforePause, false)
	set(vmtest.BeforeResume, true)
	if err := s.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Resume(t.Context()); !errors.Is(err, boom) || s.State() != bouvet.Paused {
		t.Errorf("Resume: got %v, state %v", err, s.State())
	}
	set(vmtest.BeforeResume, false)
	if err := s.Resume(t.Context()); err != nil || s.State() != bouvet.Ready {
		t.Errorf("second Resume: got %v, state %v", err, s.State())
	}
	for _, point := range []string{vmtest.BeforeSnapshot, vmtest.AfterSnapshot} {
		set(point, true)
		dir := private(t)
		if err := s.Snapshot(t.Context(), dir); !errors.Is(err, boom) || !errors.Is(err, bouvet.ErrVM) {
			t.Errorf("Snapshot: got %v", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: left %v, %v", point, entries, err)
		}
		set(point, false)
		if _, err := s.Execute(t.Context(), "true"); err != nil {
			t.Errorf("after a failed Snapshot: %v", err)
		}
	}
}

// private makes a directory for a snapshot.
func private(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Processes stand still when the machine is saved, and those who use the sandbox
// meanwhile notice nothing.
func TestSnapshot(t *testing.T) {
	var s *bouvet.Sandbox
	mark := filepath.Join(t.TempDir(), "mark")
	var states []string
	fake := vmtest.NewFake(t, vmtest.FakeOptions{SnapshotDelay: 50 * time.Millisecond})
	faulty := vmtest.NewFaulty(fake, func(point string, _ int) error {
		if point == vmtest.BeforeSnapshot {
			states = append(states, stateOf(t, mark))
		}
		return nil
	})
	s, err := newManager(t, faulty, bouvet.ManagerOptions{}).CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Command(t.Context(), "sh", "-c", `echo $$ > "$0.new"; mv "$0.new" "$0"; while read x; do echo $x; done`, mark)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if _, err := os.Stat(mark); err == nil || time.Now().After(deadline) {
			break
		}
		if _, err := s.Execute(t.Context(), "true"); err != nil {
			t.Fatal(err)
		}
	}
	stop := make(chan struct{})
	var users sync.WaitGroup
	for _, use := range []func() error{
		func() error { _, err := s.Execute(t.Context(), "true"); return err },
		func() error { return s.WriteFile(t.Context(), mark+"-file", "x") },
		func() error { return s.Command(t.Context(), "true").Run() },
	} {
		users.Go(func() {
			for {
				if err := use(); err != nil {
					t.Errorf("while it is saved: %v", err)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for range 3 {
		if err := s.Snapshot(t.Context(), private(t)); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(in, "line\n"); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	users.Wait()
	if err := errors.Join(in.Close(), c.Wait()); err != nil || out.String() != "line\nline\nline\n" {
		t.Errorf("the command: got %q, %v", out.String(), err)
	}
	if got := strings.Join(states, ""); got != "TTT" {
		t.Errorf("when it was saved the command was in states %s, want T each time", got)
	}
}

// stateOf returns the state of the process whose number is in a file.
func stateOf(t *testing.T, file string) string {
	t.Helper()
	pid, err := os.ReadFile(file)
	if err != nil {
		t.Error(err)
		return ""
	}
	stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
	if err != nil {
		t.Error(err)
		return ""
	}
	return strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))[0]
}

// A sandbox that is destroyed, or dies, while it is saved says so, and nothing hangs.
func TestSnapshotEnds(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{SnapshotDelay: time.Minute})
	m := newManager(t, fake, bouvet.ManagerOptions{})
	for what, end := range map[string]func(*bouvet.Sandbox){
		"destroyed": func(s *bouvet.Sandbox) { _ = s.Destroy(t.Context()) },
		"dies":      func(s *bouvet.Sandbox) { fake.Kill(s.ID().String()) },
		"cancelled": nil,
	} {
		s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		dir := private(t)
		if end != nil {
			time.AfterFunc(100*time.Millisecond, func() { end(s) })
		}
		err = s.Snapshot(ctx, dir)
		cancel()
		if err == nil {
			t.Errorf("%s: got no error", what)
		}
		if entries, rerr := os.ReadDir(dir); rerr != nil || len(entries) > 0 {
			t.Errorf("%s: left %v, %v", what, entries, rerr)
		}
		if end == nil {
			if _, err := s.Execute(t.Context(), "true"); err != nil {
				t.Errorf("%s: afterwards: %v", what, err)
			}
		}
		if err := m.Destroy(t.Context(), s.ID()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// unending is a guest whose commands never end.
var unending = vmtest.Scripted(func(ctx context.Context, conn net.Conn, port uint32) {
	if port != wire.PortExec {
		pingOnly(ctx, conn, port)
		return
	}
	<-ctx.Done()
})
