package local_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm/gvisor"
	"github.com/bouvet-run/bouvet/vm/qemu"
)

// T30: real sandboxes fork. Each copy has the files, the memory and the detached
// command of the original, and names and random numbers that nobody else has.
func TestFork(t *testing.T) {
	imagetest.Default(t)
	for _, driver := range []string{gvisor.Name, qemu.Name} {
		t.Run(driver, func(t *testing.T) {
			m, err := local.Open(t.Context(), local.Options{Exe: helper(t), Driver: driver})
			if driver == qemu.Name && err != nil {
				t.Skipf("QEMU is not ready: %v: run `apt-get install qemu-system-x86`, `bouvet kernel fetch` and `make build`", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := m.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			fork(t, m)
		})
	}
}

func fork(t *testing.T, m *bouvet.Manager) {
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(t.Context(), "/root/file", "ours\n"); err != nil {
		t.Fatal(err)
	}
	echo := s.Command(t.Context(), "sh", "-c", "while read line; do echo $line $(hostname); done")
	echo.Detach, echo.ID = true, "echo"
	if _, err := echo.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(echo.Start(), echo.Release()); err != nil {
		t.Fatal(err)
	}
	copies, err := s.Fork(t.Context(), 3)
	if errors.Is(err, bouvet.ErrUnsupported) {
		t.Skipf("the driver cannot save sandboxes on this host: %v: run `bouvet doctor`", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	random := map[string]bool{}
	var all sync.WaitGroup
	for _, c := range append(copies, s) {
		all.Go(func() {
			r, err := c.Execute(t.Context(), "cat /root/file; hostname; od -An -N16 -tx1 /dev/urandom")
			want := fmt.Sprintf("ours\n%s\n", c.ID())
			if err != nil || len(r.Stdout) <= len(want) || r.Stdout[:len(want)] != want {
				t.Errorf("got %+v, %v, want %q", r, err, want)
				return
			}
			mu.Lock()
			random[r.Stdout[len(want):]] = true
			mu.Unlock()
			if err := say(t, c); err != nil {
				t.Errorf("the detached command: %v", err)
			}
		})
	}
	all.Wait()
	if len(random) != 4 {
		t.Errorf("the random numbers of 4 sandboxes are %d: %v", len(random), random)
	}
}

// say has the detached command of a sandbox answer.
func say(t *testing.T, s *bouvet.Sandbox) error {
	cmd := s.Attach(t.Context(), "echo", 0)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(in, "hello"); err != nil {
		return err
	}
	if err := in.Close(); err != nil {
		return err
	}
	var hello, name string
	if _, err := fmt.Fscan(out, &hello, &name); err != nil {
		return err
	}
	if hello != "hello" || name != s.ID().String() {
		return fmt.Errorf("got %q %q, want hello %s", hello, name, s.ID())
	}
	return cmd.Wait()
}
