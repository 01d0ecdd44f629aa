package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() { roles["subreaper"] = playSubreaper }

// T16: as init and as subreaper every child is reaped, ours and orphans, and each
// status reaches the process it belongs to. In a process of its own, because no
// other part of that may wait for children.
func TestSubreaper(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=subreaper")
	cmd.WaitDelay = patience
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func playSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	m := NewManager(Options{Reap: true})
	var mu sync.Mutex
	var errs []error
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	var runs sync.WaitGroup
	for i := range 200 {
		runs.Go(func() {
			// Five orphans each, and a code of its own.
			p, err := m.Start(Spec{Args: sh("for i in 1 2 3 4 5; do (true &); done; exit $1", strconv.Itoa(i%250))})
			if err != nil {
				fail(err)
				return
			}
			_ = p.Stdout().Close()
			_ = p.Stderr().Close()
			<-p.Wait()
			if got, want := p.Status(), (Status{ExitCode: i % 250}); got != want {
				fail(fmt.Errorf("command %d: got %+v, want %+v", i, got, want))
			}
		})
	}
	runs.Wait()
	deadline := time.After(patience)
	for {
		left := children()
		if len(left) == 0 {
			break
		}
		select {
		case <-deadline:
			return fmt.Errorf("children are left: %q", left)
		case <-time.After(5 * time.Millisecond):
		}
	}
	m.Close()
	return errors.Join(errs...)
}

// children returns the children of this process, zombies too.
func children() []string {
	files, err := os.ReadDir("/proc")
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	for _, f := range files {
		b, err := os.ReadFile("/proc/" + f.Name() + "/stat")
		if err != nil || f.Name() == "self" || f.Name() == "thread-self" {
			continue
		}
		_, rest, _ := strings.Cut(string(b), ") ")
		if fields := strings.Fields(rest); len(fields) > 2 && fields[1] == strconv.Itoa(os.Getpid()) {
			found = append(found, string(b))
		}
	}
	return found
}

// Without Reap other parts of the program wait for their own children.
func TestOthersChildrenAreLeftAlone(t *testing.T) {
	m := newManager(t, Options{})
	for range 20 {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "exit 3")
		cmd.WaitDelay = patience
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		run(t, m, Spec{Args: []string{"true"}})
		var ee *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &ee) || ee.ExitCode() != 3 {
			t.Fatalf("got %v, want exit status 3", err)
		}
	}
}

// T16: a process number that is used again belongs to the new process alone.
func TestPIDReuse(t *testing.T) {
	const lastPID = "/proc/sys/kernel/ns_last_pid"
	m := newManager(t, Options{})
	for range 200 {
		first := start(t, m, Spec{Args: sh("exit 3")})
		readAll(t, first.Stdout())
		readAll(t, first.Stderr())
		await(t, first)
		if err := os.WriteFile(lastPID, []byte(strconv.Itoa(first.PID()-1)), 0o600); err != nil {
			t.Skipf("the next process number cannot be chosen: %v; as root, on a kernel with CONFIG_CHECKPOINT_RESTORE: `sudo go test ./agent/proc`", err)
		}
		second := start(t, m, Spec{Args: []string{"cat"}, Stdin: true})
		if second.PID() == first.PID() {
			if err := first.Signal(unix.SIGKILL, true); !errors.Is(err, ErrEnded) {
				t.Errorf("signal to a process that has ended: got %v, want %v", err, ErrEnded)
			}
			first.Kill()
			if got := m.ByPID(second.PID()); got != second {
				t.Errorf("the number stands for %p, want %p", got, second)
			}
		}
		if err := second.Stdin().Close(); err != nil {
			t.Fatal(err)
		}
		readAll(t, second.Stdout())
		readAll(t, second.Stderr())
		await(t, second)
		if got, want := second.Status(), (Status{}); got != want {
			t.Fatalf("second process: got %+v, want %+v", got, want)
		}
		if got, want := first.Status(), (Status{ExitCode: 3}); got != want {
			t.Errorf("first process: got %+v, want %+v", got, want)
		}
		if second.PID() == first.PID() {
			return
		}
	}
	t.Skip("other programs took the number each time: run on a quieter machine")
}
