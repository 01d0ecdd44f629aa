package bouvet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// Cancelling the context ends the command and all that it started; Wait says why.
func TestCmdCancelled(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	ctx, cancel := context.WithCancelCause(t.Context())
	c := s.Command(ctx, "sh", "-c", "sleep 61 & echo $! > "+dir+"/child; echo started; wait")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("never mind")
	cancel(cause)
	if err := c.Wait(); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if _, err := io.Copy(io.Discard, out); !errors.Is(err, cause) {
		t.Errorf("reading the rest: got %v, want %v: it is not whole", err, cause)
	}
	pid, err := os.ReadFile(dir + "/child")
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, strings.TrimSpace(string(pid)))
	if got := s.State(); got != bouvet.Ready {
		t.Errorf("got state %v, want ready", got)
	}
	done, cancel2 := context.WithCancel(t.Context())
	cancel2()
	if err := s.Command(done, "true").Run(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
}

// stuck is a writer that takes nothing: a pipe that nobody reads.
type stuck struct{ writing, free chan struct{} }

func (w stuck) Write(p []byte) (int, error) {
	select {
	case w.writing <- struct{}{}:
	default: // known
	}
	<-w.free
	return len(p), nil
}

// T09, T14: a command whose output nobody takes can be given up, and its timeout
// strikes.
func TestCmdOutputStuck(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		want    error
	}{
		{"cancelled", 0, context.Canceled},
		{"timeout", 10 * time.Millisecond, bouvet.ErrTimedOut},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			w := stuck{make(chan struct{}, 1), make(chan struct{})}
			defer close(w.free)
			c := s.Command(ctx, "yes")
			c.Stdout, c.Timeout = w, tt.timeout
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			<-w.writing
			if tt.timeout == 0 {
				cancel()
			}
			wait := make(chan error, 1)
			go func() { wait <- c.Wait() }()
			select {
			case err := <-wait:
				if !errors.Is(err, tt.want) {
					t.Errorf("got %v, want %v", err, tt.want)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("Wait does not return")
			}
		})
	}
}

// awaitGone waits until a process of this host has ended.
func awaitGone(t *testing.T, pid string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		b, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s still runs", pid)
		}
		time.Sleep(time.Millisecond) // nothing tells of the end of a stranger's child
	}
}

// T15: a detached command outlives its host, and is found again with its output.
func TestCmdDetach(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	c := s.Command(t.Context(), "sh", "-c", "echo before; while [ ! -e "+dir+"/go ]; do sleep 0.01; done; echo after; exit 4")
	c.Detach, c.ID = true, "job"
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if c.ProcessID() != "job" {
		t.Errorf("got id %q, want job", c.ProcessID())
	}
	if _, err := io.ReadFull(out, make([]byte, len("before\n"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil {
		t.Error("a released command was waited for")
	}
	found := false
	list, err := s.Client().Processes(t.Context())
	for _, p := range list {
		found = found || p.ID == "job" && p.Running && p.PID == c.PID()
	}
	if err != nil || !found {
		t.Errorf("got %v, %v, want the job to run", list, err)
	}
	for range 20 {
		a := s.Attach(t.Context(), "job", -1)
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		if err := a.Release(); err != nil {
			t.Fatal(err)
		}
	}
	a := s.Attach(t.Context(), "job", 0)
	var replay bytes.Buffer
	a.Stdout = &replay
	if err := a.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var exit *bouvet.ExitError
	if err := a.Wait(); !errors.As(err, &exit) || exit.Code != 4 || replay.String() != "before\nafter\n" {
		t.Errorf("got %v and %q, want exit code 4 and all output", err, &replay)
	}
	if err := s.Attach(t.Context(), "nobody", 0).Run(); err == nil {
		t.Error("attached to nothing")
	}
}

// T15, K9: goroutines and descriptors are given back.
func TestNothingLeaks(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s, _ := newSandbox(t, bouvet.Config{})
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		c := s.Command(ctx, "cat")
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		switch i % 3 {
		case 0:
			cancel()
		case 1:
			_ = in.Close()
		case 2:
			_ = c.Signal(syscall.SIGKILL)
		}
		_ = c.Wait()
		cancel()
	}
}
