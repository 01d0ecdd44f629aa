package bouvet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// renewals records what agents are asked to renew. A guest that is not a real one
// must not do it: it would be the host's.
type renewals struct {
	mu   sync.Mutex
	log  []string // guarded by mu
	seen map[string]bool
	fail string
}

func (r *renewals) note(what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, what)
	if r.fail != "" && strings.HasPrefix(what, r.fail) {
		return errors.New("told to fail")
	}
	return nil
}

func (r *renewals) take() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer func() { r.log = nil }()
	return r.log
}

func (r *renewals) Sync() error { return nil }

func (r *renewals) AddEntropy(seed []byte) error {
	r.mu.Lock()
	if r.seen == nil {
		r.seen = map[string]bool{}
	}
	again := r.seen[string(seed)]
	r.seen[string(seed)] = true
	r.mu.Unlock()
	if again {
		return errors.New("this entropy was given before")
	}
	return r.note(fmt.Sprintf("entropy %d", len(seed)))
}

func (r *renewals) SetClock(now time.Time) error {
	if off := time.Since(now).Abs(); off > 10*time.Second {
		return fmt.Errorf("the time is off by %v", off)
	}
	return r.note("clock")
}

func (r *renewals) SetHostname(name string) error { return r.note("host name " + name) }
func (r *renewals) RenewMachineID() error         { return r.note("machine-id") }
func (r *renewals) ForgetSeed() error             { return r.note("random seed") }

// guest is the real agent with those renewals.
func (r *renewals) guest(ctx context.Context, l net.Listener) {
	s := agent.NewServer(agent.Options{System: r})
	defer func() { _ = s.Close() }()
	_ = s.Serve(ctx, l, 0)
}

// A snapshot becomes a sandbox of its own, of the same shape, which is thawed before
// anybody has it.
func TestRestore(t *testing.T) {
	var r renewals
	images := &countingImages{}
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: r.guest})
	m := newManager(t, fake, bouvet.ManagerOptions{Images: images})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{MemoryMiB: 64, VCPUs: 3, Image: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	dir := private(t)
	if err := s.Snapshot(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(r.take(), ", "); got != "entropy 64, clock" {
		t.Errorf("of the original were renewed: %s", got)
	}
	if err := m.Destroy(t.Context(), s.ID()); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []bouvet.Config{{}, {Hostname: "web-1"}, {MemoryMiB: 64, VCPUs: 3}} {
		c, err := m.Restore(t.Context(), dir, cfg)
		if err != nil {
			t.Fatal(err)
		}
		name := cfg.Hostname
		if name == "" {
			name = c.ID().String()
		}
		if got, want := strings.Join(r.take(), ", "), "entropy 64, clock, host name "+name+", machine-id, random seed"; got != want {
			t.Errorf("renewed: %s, want %s", got, want)
		}
		if got := c.Config(); got.MemoryMiB != 64 || got.VCPUs != 3 || c.ID() == s.ID() {
			t.Errorf("got %+v", got)
		}
		if images.last != imageDigest {
			t.Errorf("got image %s, want the snapshot's", images.last)
		}
		if _, err := c.Execute(t.Context(), "true"); err != nil {
			t.Error(err)
		}
		if got, err := m.Get(c.ID()); got != c {
			t.Errorf("Get: got %v, %v", got, err)
		}
	}
	if err := m.DestroyAll(t.Context()); err != nil || images.held() != 0 {
		t.Errorf("got %v, and %d images are held", err, images.held())
	}
}

// T31: what cannot be used is refused, and nothing is left of a copy that cannot be
// thawed.
func TestRestoreFails(t *testing.T) {
	var r renewals
	images := &countingImages{}
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Restored: r.guest})
	m := newManager(t, fake, bouvet.ManagerOptions{Images: images})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dir := private(t)
	if err := s.Snapshot(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	for what, tt := range map[string]struct {
		dir string
		cfg bouvet.Config
	}{
		"no snapshot":   {dir: private(t)},
		"relative path": {dir: "snapshot"},
		"more memory":   {dir: dir, cfg: bouvet.Config{MemoryMiB: 512}},
		"fewer CPUs":    {dir: dir, cfg: bouvet.Config{VCPUs: 1}},
	} {
		if _, err := m.Restore(t.Context(), tt.dir, tt.cfg); !errors.Is(err, vm.ErrBadSnapshot) || !errors.Is(err, bouvet.ErrVM) {
			t.Errorf("%s: got %v, want ErrBadSnapshot", what, err)
		}
	}
	manifest := filepath.Join(dir, "manifest.json")
	b, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, []byte(strings.Replace(string(b), `"fake"`, `"qemu"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Restore(t.Context(), dir, bouvet.Config{}); !errors.Is(err, vm.ErrBadSnapshot) || !strings.Contains(err.Error(), `"qemu"`) {
		t.Errorf("another driver: got %v", err)
	}
	if err := os.WriteFile(manifest, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"entropy", "clock", "host name", "machine-id", "random seed"} {
		r.fail = part
		if _, err := m.Restore(t.Context(), dir, bouvet.Config{}); !errors.Is(err, bouvet.ErrRPC) || !strings.Contains(err.Error(), part) {
			t.Errorf("%s cannot be renewed: got %v", part, err)
		}
	}
	if fake.Living() != 1 || images.held() != 1 || len(m.List()) != 1 {
		t.Errorf("%d machines, %d images and %d sandboxes are left, want 1 each", fake.Living(), images.held(), len(m.List()))
	}
}

// forks is where Fork keeps snapshots; it counts them.
type forks struct {
	t    testing.TB
	mu   sync.Mutex
	dirs map[string]bool // guarded by mu
}

func (f *forks) Temp(context.Context) (string, func(), error) {
	dir := private(f.t)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dirs == nil {
		f.dirs = map[string]bool{}
	}
	f.dirs[dir] = true
	return dir, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.dirs[dir] {
			f.t.Error("a snapshot was released twice")
		}
		delete(f.dirs, dir)
		if err := os.RemoveAll(dir); err != nil {
			f.t.Error(err)
		}
	}, nil
}

func (f *forks) n() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.dirs)
}

// Copies are sandboxes of their own, and their snapshot goes with the last of them.
func TestFork(t *testing.T) {
	snapshots := &forks{t: t}
	images := &countingImages{}
	fake := vmtest.NewFake(t, vmtest.FakeOptions{})
	m := newManager(t, fake, bouvet.ManagerOptions{Images: images, Snapshots: snapshots, MaxSandboxes: 8})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{Hostname: "parent", Env: []string{"A=b"}, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	copies, err := s.Fork(t.Context(), 5)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[bouvet.SandboxID]bool{s.ID(): true}
	for _, c := range copies {
		ids[c.ID()] = true
		if got := c.Config(); got.Hostname == "parent" || got.Env[0] != "A=b" || got.Timeout != time.Minute || c.State() != bouvet.Ready {
			t.Errorf("got %+v, state %v", got, c.State())
		}
		if r, err := c.Execute(t.Context(), "echo $A"); err != nil || r.Stdout != "b\n" {
			t.Errorf("got %+v, %v", r, err)
		}
	}
	if len(ids) != 6 || len(m.List()) != 6 || snapshots.n() != 1 {
		t.Errorf("%d IDs, %d sandboxes, %d snapshots; want 6, 6, 1", len(ids), len(m.List()), snapshots.n())
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	for i, c := range copies {
		if snapshots.n() != 1 {
			t.Errorf("the snapshot went before copy %d", i)
		}
		if err := m.Destroy(t.Context(), c.ID()); err != nil {
			t.Error(err)
		}
	}
	if err := m.DestroyAll(t.Context()); err != nil || snapshots.n() != 0 || images.held() != 0 {
		t.Errorf("got %v; %d snapshots and %d images are left", err, snapshots.n(), images.held())
	}
}

// All or nothing, whatever fails.
func TestForkFails(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		point string
		max   int
		want  error
	}{
		"restore":           {vmtest.AfterRestore, 0, boom},
		"snapshot":          {vmtest.BeforeSnapshot, 0, boom},
		"the limit":         {"", 3, bouvet.ErrLimit},
		"a restore refused": {vmtest.BeforeRestore, 0, boom},
	} {
		t.Run(name, func(t *testing.T) {
			snapshots := &forks{t: t}
			fake := vmtest.NewFake(t, vmtest.FakeOptions{})
			var mu sync.Mutex
			passed := 0
			faulty := vmtest.NewFaulty(fake, func(point string, _ int) error {
				mu.Lock()
				defer mu.Unlock()
				if point != tt.point {
					return nil
				}
				if passed++; passed == 3 || point == vmtest.BeforeSnapshot {
					return boom
				}
				return nil
			})
			m := newManager(t, faulty, bouvet.ManagerOptions{Snapshots: snapshots, MaxSandboxes: tt.max})
			s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if copies, err := s.Fork(t.Context(), 4); !errors.Is(err, tt.want) || copies != nil {
				t.Errorf("got %v, %v, want %v", copies, err, tt.want)
			}
			if fake.Living() != 1 || len(m.List()) != 1 || snapshots.n() != 0 {
				t.Errorf("%d machines, %d sandboxes and %d snapshots, want 1, 1 and 0", fake.Living(), len(m.List()), snapshots.n())
			}
			if _, err := s.Execute(t.Context(), "true"); err != nil {
				t.Errorf("the original: %v", err)
			}
		})
	}
	s, _ := newSandbox(t, bouvet.Config{})
	for _, n := range []int{-1, 0, bouvet.MaxForks + 1} {
		if _, err := s.Fork(t.Context(), n); !errors.Is(err, bouvet.ErrInvalidConfig) {
			t.Errorf("%d copies: got %v, want a refusal", n, err)
		}
	}
	// Without a place for snapshots the system's will do.
	t.Setenv("TMPDIR", t.TempDir())
	copies, err := s.Fork(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := copies[0].Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(os.TempDir()); err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}
