package gvisor

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func TestMachineAnswers(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	m := create(t, d, c)
	for _, tt := range []struct{ ask, want string }{
		{"ping", "pong"},
		{"nproc", "2"},
		{"grep MemTotal /proc/meminfo", "MemTotal:         131072 kB"},
		{"hostname", c.ID},
		{"id -u", "0"},
		{"cat /proc/1/cmdline | tr '\\0' ' '", "/.bouvet/agent --mux fd:3 --host-bound"},
		{"su user -c 'id -un; sudo -n id -un' | paste -sd ,", "user,root"},
		{"echo new > /file && cat /file", "new"},
		{"echo x > /.bouvet/agent; echo x > /.bouvet/x; mount -o remount,rw /.bouvet && echo x > /.bouvet/x; ls /.bouvet", "agent"}, // T54
		{"tail -n +3 /proc/net/dev | cut -d: -f1", "lo"},
	} {
		got, err := ask(testContext(t), m, tt.ask)
		lines := strings.Split(strings.TrimSpace(got), "\n")
		if got := strings.TrimSpace(lines[len(lines)-1]); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", tt.ask, lines, err, tt.want)
		}
	}
}

func TestDestroyLeavesNothing(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	var ids []string
	for _, grace := range []time.Duration{0, 5 * time.Second} {
		for _, detached := range []bool{false, true} {
			c := testConfig(t)
			c.Detached = detached
			ids = append(ids, c.ID)
			m := create(t, d, c)
			stream, err := m.Dial(testContext(t), 52)
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Destroy(testContext(t), grace); err != nil {
				t.Errorf("grace %v, detached %v: %v", grace, detached, err)
			}
			if m.Err() != nil {
				t.Errorf("Err after Destroy: got %v, want nil", m.Err())
			}
			if _, err := stream.Read(make([]byte, 1)); err == nil {
				t.Error("stream is open after Destroy")
			}
			_ = stream.Close()
			if _, err := m.Dial(testContext(t), 52); !errors.Is(err, vm.ErrGone) {
				t.Errorf("Dial after Destroy: got %v, want ErrGone", err)
			}
		}
	}
	wantNothing(t, d, ids...)
}

// T26: the sentry's end is noticed within a second.
func TestKilledSentry(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	m := create(t, d, c)
	if _, err := ask(testContext(t), m, "ping"); err != nil {
		t.Fatal(err)
	}
	pid := m.(*machine).sentry.PID
	killed := time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-time.After(time.Second):
		t.Fatal("Done is open a second after kill -9 of the sentry")
	}
	t.Logf("noticed after %v", time.Since(killed))
	if err := m.Err(); !errors.Is(err, vm.ErrGone) {
		t.Errorf("Err: got %v, want ErrGone", err)
	}
	if _, err := m.Dial(testContext(t), 52); !errors.Is(err, vm.ErrGone) {
		t.Errorf("Dial: got %v, want ErrGone", err)
	}
	if err := m.Destroy(testContext(t), time.Minute); err != nil {
		t.Fatal(err)
	}
	wantNothing(t, d, c.ID)
}

// T08: a guest that ends itself.
func TestGuestEnds(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, testConfig(t))
	_, _ = ask(testContext(t), m, "kill -9 1; kill -9 -1")
	select {
	case <-m.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("a machine whose PID 1 was killed is not gone")
	}
	if err := m.Err(); !errors.Is(err, vm.ErrGone) {
		t.Errorf("Err: got %v, want ErrGone", err)
	}
}

// T02: a machine over its memory is gone, and its error says why.
func TestMemoryLimit(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	if !d.Features().MemoryLimit {
		t.Skip("this host lets us set no memory limit: run as root, or with a delegated cgroup")
	}
	m := create(t, d, testConfig(t))
	// T03: a full disk is an error inside, not the end.
	if got, err := ask(testContext(t), m, "dd if=/dev/zero of=/big bs=1M count=200 2>&1; ls -l /big; rm /big"); !strings.Contains(got, "No space left") {
		t.Fatalf("filling the disk: got %q, %v, want no space left", got, err)
	}
	// What was promised is there.
	if got, err := ask(testContext(t), m, "dd if=/dev/zero of=/dev/null bs=95M count=1 2>&1 && echo fine"); !strings.Contains(got, "fine") {
		t.Fatalf("95 MiB of memory: got %q, %v", got, err)
	}
	_, _ = ask(testContext(t), m, "dd if=/dev/zero of=/dev/null bs=400M count=1")
	select {
	case <-m.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("a machine of 128 MiB holds 400 MB")
	}
	if err := m.Err(); !errors.Is(err, vm.ErrGone) || !strings.Contains(err.Error(), "out of memory") {
		t.Errorf("Err: got %v, want ErrGone that says out of memory", err)
	}
}

// T06: a flood on the console neither blocks the guest nor takes space.
func TestConsoleIsBounded(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, testConfig(t))
	if _, err := ask(testContext(t), m, "dd if=/dev/zero bs=1M count=64 of=/proc/1/fd/1"); err != nil {
		t.Fatal(err)
	}
	info, err := m.(*machine).ends.console.Stat()
	if err != nil || info.Size() != consoleSize {
		t.Errorf("console: got %d bytes, %v, want %d", info.Size(), err, consoleSize)
	}
	if got, err := ask(testContext(t), m, "ping"); got != "pong\n" {
		t.Errorf("ping after the flood: got %q, %v", got, err)
	}
}

func TestRefused(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	for _, tt := range []struct {
		name   string
		change func(*vm.Config)
		want   error
	}{
		{"T44 id", func(c *vm.Config) { c.ID = "../../etc" }, vm.ErrInvalidConfig},
		{"no image", func(c *vm.Config) { c.Image = filepath.Join(t.TempDir(), "none") }, os.ErrNotExist},
		{"T31 image is a directory", func(c *vm.Config) { c.Image = t.TempDir() }, vm.ErrInvalidConfig},
		{"T31 image is a device", func(c *vm.Config) { c.Image = "/dev/null" }, vm.ErrInvalidConfig},
		{"T31 image is garbage", func(c *vm.Config) { c.Image = garbage(t) }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := testConfig(t)
			tt.change(&c)
			m, err := d.Create(testContext(t), c)
			if err == nil {
				t.Fatalf("got a machine: %v", m.Destroy(testContext(t), 0))
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			t.Log(err)
			wantNothing(t, d)
		})
	}
}

func garbage(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(path, []byte(strings.Repeat("garbage ", 8192)), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// T39: of several creators of one ID exactly one wins.
func TestSameIDConcurrently(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	var mu sync.Mutex
	var won []vm.Machine
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			m, err := d.Create(testContext(t), c)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won = append(won, m)
			case !errors.Is(err, vm.ErrExists):
				t.Errorf("got %v, want ErrExists", err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("got %d machines, want 1", len(won))
	}
	if got, err := ask(testContext(t), won[0], "ping"); got != "pong\n" {
		t.Errorf("ping: got %q, %v", got, err)
	}
	for range 4 { // Destroy from all sides
		wg.Go(func() {
			if err := won[0].Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantNothing(t, d, c.ID)
}

// T39: a Create that is cancelled at any instant leaves nothing.
func TestCancelCreate(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	warm := time.Now()
	if err := create(t, d, testConfig(t)).Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	whole := time.Since(warm)
	var ids []string
	cancelled := 0
	for range 50 {
		c := testConfig(t)
		ids = append(ids, c.ID)
		ctx, cancel := context.WithTimeout(testContext(t), rand.N(whole))
		m, err := d.Create(ctx, c)
		cancel()
		switch {
		case err == nil:
			if err := m.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("got %v, want DeadlineExceeded", err)
		default:
			cancelled++
		}
		wantNothing(t, d, c.ID)
	}
	t.Logf("%d of 50 cancelled within %v", cancelled, whole)
	if cancelled == 0 {
		t.Error("nothing was cancelled")
	}
	wantNothing(t, d, ids...)
}

// T39: many at once, each destroyed while others are being made.
func TestStorm(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	for range 30 {
		c := testConfig(t)
		wg.Go(func() {
			mu.Lock()
			ids = append(ids, c.ID)
			mu.Unlock()
			m, err := d.Create(testContext(t), c)
			if err != nil {
				t.Error(err)
				return
			}
			if got, err := ask(testContext(t), m, "ping"); got != "pong\n" {
				t.Errorf("ping: got %q, %v", got, err)
			}
			if err := m.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wantNothing(t, d, ids...)
}

func TestDestroyWithEndedContext(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	m := create(t, d, c)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := m.Destroy(ctx, 0); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Error(err)
	}
	wantNothing(t, d, c.ID)
}

func TestDialEndsWithMachine(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, testConfig(t))
	if _, err := ask(testContext(t), m, "ping"); err != nil {
		t.Fatal(err)
	}
	// A stopped sentry answers nothing, so that the dial hangs.
	testutil.Stop(t, m.(*machine).sentry.PID)
	result := make(chan error, 1)
	go func() {
		conn, err := m.Dial(testContext(t), 52)
		if err == nil {
			_ = conn.Close()
		}
		result <- err
	}()
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := m.Dial(short, 52); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial of a stopped machine: got %v, want DeadlineExceeded", err)
	}
	if err := m.Destroy(testContext(t), 0); err != nil { // T27: whatever state
		t.Fatal(err)
	}
	if err := <-result; !errors.Is(err, vm.ErrGone) {
		t.Errorf("Dial while the machine ends: got %v, want ErrGone", err)
	}
}
