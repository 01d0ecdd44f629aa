package gvisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// briefly is a context for what is not to be answered.
func briefly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// says fails t unless the machine's guest answers a command with want.
func says(t testing.TB, m vm.Machine, line, want string) {
	t.Helper()
	got, err := ask(testContext(t), m, line)
	if got := strings.TrimSpace(got); got != want || err != nil {
		t.Errorf("%s: got %q, %v, want %q", line, got, err, want)
	}
}

// T30: streams lose nothing over many pauses and snapshots, and the guest stands still
// meanwhile. A copy that was made in the middle of a frame takes up a session of its own.
func TestPauseUnderTraffic(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	padding := strings.Repeat("x", 100_000)
	stop := make(chan struct{})
	var traffic sync.WaitGroup
	for i := range 3 {
		traffic.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				want := fmt.Sprintf("%d-%d", i, n)
				says(t, m, "head -c 100000 /dev/zero | tr '\\0' ' '; echo "+want+" #"+padding, want)
			}
		})
	}
	for i := range 20 {
		if i%5 == 0 {
			says(t, restore(t, d, savable(t), save(t, m)), "ping", "pong")
		}
		if err := m.Pause(testContext(t)); err != nil {
			t.Fatal(err)
		}
		if err := m.Pause(testContext(t)); err != nil { // once more changes nothing
			t.Fatal(err)
		}
		if err := m.Resume(testContext(t)); err != nil {
			t.Fatal(err)
		}
		says(t, m, "ping", "pong")
	}
	close(stop)
	traffic.Wait()

	stream, err := m.Dial(testContext(t), 52)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if err := m.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if conn, err := m.Dial(briefly(t), 52); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial of a paused machine: got %v, %v, want DeadlineExceeded", conn, err)
	}
	if _, err := io.WriteString(stream, "echo here\n"); err != nil {
		t.Fatal(err)
	}
	_ = stream.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, err := stream.Read(make([]byte, 1)); err == nil {
		t.Errorf("a paused guest answered with %d bytes", n)
	}
	if err := m.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	_ = stream.SetReadDeadline(time.Now().Add(30 * time.Second))
	if got, err := bufio.NewReader(stream).ReadString('\n'); got != "here\n" {
		t.Errorf("the stream after the pause: got %q, %v", got, err)
	}
}

// However many pause and resume at once, the last one decides.
func TestPauseConcurrently(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, testConfig(t))
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			do := m.Pause
			if i%2 == 0 {
				do = m.Resume
			}
			if err := do(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if err := m.Resume(testContext(t)); err != nil {
		t.Error(err)
	}
	says(t, m, "ping", "pong")
}

// A paused machine is destroyed at once, whatever the grace, and cannot be paused
// or saved after that.
func TestDestroyPaused(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	m := create(t, d, c)
	if err := m.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(testContext(t), time.Hour); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, d, c.ID)
	for name, do := range map[string]func() error{
		"Pause":    func() error { return m.Pause(testContext(t)) },
		"Resume":   func() error { return m.Resume(testContext(t)) },
		"Snapshot": func() error { return m.Snapshot(testContext(t), t.TempDir()) },
	} {
		if err := do(); !errors.Is(err, vm.ErrGone) {
			t.Errorf("%s after Destroy: got %v, want ErrGone", name, err)
		}
	}
}

// T27: a sentry that does not answer holds up nobody beyond the call's context, and
// what was asked of it in vain is undone when it goes on.
func TestAbandonedOperations(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, m vm.Machine) error
	}{
		{"pause", func(ctx context.Context, m vm.Machine) error { return m.Pause(ctx) }},
		{"save", func(ctx context.Context, m vm.Machine) error {
			dir := t.TempDir()
			err := m.Snapshot(ctx, dir)
			wantEmpty(t, dir)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ledgered(t)
			m := create(t, d, savable(t))
			says(t, m, "ping", "pong")
			pid := m.(*machine).sentry.PID
			testutil.Stop(t, pid)
			for range 2 { // the second one waits for the first
				if err := tt.do(briefly(t), m); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want DeadlineExceeded", err)
				}
			}
			if err := unix.Kill(pid, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			says(t, m, "ping", "pong")
			testutil.Stop(t, pid)
			result := make(chan error, 1)
			go func() { result <- tt.do(testContext(t), m) }()
			if err := m.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
			if err := <-result; !errors.Is(err, vm.ErrGone) {
				t.Errorf("got %v after Destroy, want ErrGone", err)
			}
		})
	}
}
