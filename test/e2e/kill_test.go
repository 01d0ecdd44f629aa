package e2e

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// T26: kill -9 of a sandbox's kernel ends whatever is under way with an error that
// says so, within a second, and the manager clears up.
func TestKernelKilled(t *testing.T) {
	for _, tt := range []struct {
		name string
		// call blocks until the sandbox is gone; it closes begun when it is under way.
		call func(s *bouvet.Sandbox, begun func()) error
	}{
		{"during a call", func(s *bouvet.Sandbox, begun func()) error {
			go func() {
				eventually(t, "the command runs", func() bool { all, _ := s.Client().Processes(timed(t)); return len(all) > 0 })
				begun()
			}()
			_, err := s.Execute(timed(t), "sleep 4711")
			return err
		}},
		{"during a command", func(s *bouvet.Sandbox, begun func()) error {
			c := s.Command(timed(t), "yes")
			c.Stdout = onWrite(begun)
			return c.Run()
		}},
		{"during an upload", func(s *bouvet.Sandbox, begun func()) error {
			_, err := s.Client().Upload(timed(t), "/tmp/x", onRead(begun), nil)
			return err
		}},
		{"during a download", func(s *bouvet.Sandbox, begun func()) error {
			sh(t, s, "truncate -s 10T /tmp/huge")
			_, err := s.Client().Download(timed(t), "/tmp/huge", onWrite(begun))
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ledger(t)
			m := open(t)
			s := create(t, m, bouvet.Config{})
			begun, result := make(chan struct{}), make(chan error, 1)
			go func() {
				var once bool
				result <- tt.call(s, func() {
					if !once {
						once = true
						close(begun)
					}
				})
			}()
			<-begun
			killed := time.Now()
			killSentry(t, s.ID().String())
			within(t, 2*time.Second, "the sandbox knows its end", s.Done())
			t.Logf("known after %v", time.Since(killed))
			if err := <-result; !errors.Is(err, vm.ErrGone) || !errors.Is(err, bouvet.ErrVM) {
				t.Errorf("got %v, want ErrVM and ErrGone", err)
			}
			if s.State() != bouvet.Destroyed || !errors.Is(s.Err(), vm.ErrGone) {
				t.Errorf("got state %v, %v", s.State(), s.Err())
			}
			if _, err := s.Execute(timed(t), "true"); !errors.Is(err, vm.ErrGone) {
				t.Errorf("a later call: got %v, want ErrGone", err)
			}
			if err := m.Destroy(timed(t), s.ID()); err != nil {
				t.Error(err)
			}
		})
	}
}

// onWrite is a writer that tells of each Write.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// onRead is an endless reader that tells of each Read.
type onRead func()

func (f onRead) Read(p []byte) (int, error) {
	f()
	return len(p), nil
}

// T26, T29: a kernel that is killed while its sandbox is made makes the creation
// fail, or the sandbox end, and nothing is left.
func TestKernelKilledWhileCreating(t *testing.T) {
	ledger(t)
	m := open(t)
	failed := 0
	for i := range 8 {
		id := newID()
		ctx, cancel := context.WithCancel(timed(t))
		type made struct {
			s   *bouvet.Sandbox
			err error
		}
		result := make(chan made, 1)
		go func() {
			defer cancel()
			s, err := m.CreateSandbox(timed(t), bouvet.Config{ID: id, ConnectTimeout: 5 * time.Second})
			result <- made{s, err}
		}()
		instant := time.NewTimer(time.Duration(i) * 10 * time.Millisecond)
		<-instant.C
		// Whatever stage it is at: the helper, the sentry, or nothing yet.
		for ctx.Err() == nil && len(sentries(t, id.String())) == 0 {
			instant.Reset(time.Millisecond)
			<-instant.C
		}
		if len(sentries(t, id.String())) > 0 {
			killAll(t, id.String())
		}
		r := <-result
		if r.err != nil {
			failed++
			if !errors.Is(r.err, bouvet.ErrVM) {
				t.Errorf("got %v, want ErrVM", r.err)
			}
		} else {
			within(t, 2*time.Second, "the sandbox knows its end", r.s.Done())
			if err := m.Destroy(timed(t), id); err != nil {
				t.Error(err)
			}
		}
		if left := sentries(t, id.String()); len(left) > 0 {
			t.Errorf("processes are left: %v", left)
		}
	}
	t.Logf("%d of 8 creations failed", failed)
	if len(m.List()) > 0 {
		t.Errorf("the manager still lists %v", m.List())
	}
}

func killAll(t *testing.T, id string) {
	t.Helper()
	for _, pid := range sentries(t, id) {
		kill9(pid)
	}
}

// T28: an agent that is stopped answers nothing; calls end in their time, and the
// sandbox can be destroyed.
func TestAgentStopped(t *testing.T) {
	ledger(t)
	m := open(t)
	s := create(t, m, bouvet.Config{RPCTimeout: time.Second, ConnectTimeout: 5 * time.Second})
	c := s.Command(timed(t), "sh", "-c", "kill -STOP 1; sleep 4711")
	_ = c.Start() // nobody may be left to say that it has started
	eventually(t, "the agent is stopped", func() bool { return s.Client().Ping(timed(t)) != nil })
	var calls sync.WaitGroup
	begin := time.Now()
	for name, call := range map[string]func() error{
		"ping":  func() error { return s.Client().Ping(timed(t)) },
		"exec":  func() error { _, err := s.Execute(timed(t), "true"); return err },
		"write": func() error { return s.WriteFile(timed(t), "/tmp/x", strings.Repeat("x", 1<<20)) },
		"upload": func() error {
			_, err := s.Client().Upload(timed(t), "/tmp/x", io.LimitReader(&endless{}, 16<<20), nil)
			return err
		},
		"command": func() error { return s.Command(timed(t), "true").Run() },
	} {
		calls.Go(func() {
			err := call()
			if err == nil {
				t.Errorf("%s was answered by an agent that is stopped", name)
			}
			t.Logf("%s after %v: %v", name, time.Since(begin), err)
		})
	}
	calls.Wait()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("calls with a second each, and 5 to connect, took %v", took)
	}
	begin = time.Now()
	if err := m.Destroy(timed(t), s.ID()); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("Destroy took %v", took)
	}
}
