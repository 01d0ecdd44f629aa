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

	"github.com/google/go-cmp/cmp"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// newManager returns a manager over driver, closed when the test ends.
func newManager(t testing.TB, driver vm.Driver, opts bouvet.ManagerOptions) *bouvet.Manager {
	t.Helper()
	opts.Driver = driver
	if opts.Images == nil && opts.Defaults.RootfsPath == "" {
		opts.Defaults.RootfsPath = "/root.erofs"
	}
	m, err := bouvet.NewManager(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return m
}

// newSandbox returns a sandbox of a fake machine with the real agent in it, which
// works on this host's files, and a directory for it.
func newSandbox(t testing.TB, cfg bouvet.Config) (*bouvet.Sandbox, string) {
	t.Helper()
	m := newManager(t, vmtest.NewFake(t, vmtest.FakeOptions{}), bouvet.ManagerOptions{})
	s, err := m.CreateSandbox(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, t.TempDir()
}

// E4, K3, K4, K5, D1 to D11: a sandbox with the real agent.
func TestSandbox(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{Language: "bash", Env: []string{"GREETING=hello"}})
	ctx := t.Context()
	if got := s.State(); got != bouvet.Ready {
		t.Errorf("got state %v, want ready", got)
	}
	if s.ID().IsZero() || s.Config().ID != s.ID() || s.CreatedAt().IsZero() || s.Machine().ID() != s.ID().String() {
		t.Errorf("got id %v, config %v, machine %v", s.ID(), s.Config().ID, s.Machine().ID())
	}
	if got := s.Config(); got.MemoryMiB != 256 || got.VCPUs != 2 { // K1, L13
		t.Errorf("got %d MiB and %d vCPUs, want 256 and 2", got.MemoryMiB, got.VCPUs)
	}
	check := func(r *bouvet.ExecResult, err error, want bouvet.ExecResult) {
		t.Helper()
		if err != nil {
			t.Error(err)
			return
		}
		if diff := cmp.Diff(want, *r); diff != "" {
			t.Error(diff)
		}
	}
	r, err := s.Execute(ctx, "echo $GREETING; echo oops >&2; exit 3")
	check(r, err, bouvet.ExecResult{ExitCode: 3, Stdout: "hello\n", Stderr: "oops\n"})
	r, err = s.ExecuteCode(ctx, "", "echo $((6*7)) ${BASH_VERSION:+bash}")
	check(r, err, bouvet.ExecResult{Stdout: "42 bash\n"})
	r, err = s.ExecuteCode(ctx, "cobol", "")
	check(r, err, bouvet.ExecResult{ExitCode: -1, Stderr: "unsupported language: cobol"})

	path := filepath.Join(dir, "new", "file")
	if err := s.WriteFile(ctx, path, "ä\n"); err != nil {
		t.Error(err)
	}
	if got, err := s.ReadFile(ctx, path); got != "ä\n" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	entries, err := s.ListDir(ctx, dir)
	if want := []bouvet.FileEntry{{Name: "new", IsDir: true}}; err != nil || !cmp.Equal(entries, want) {
		t.Errorf("got %v, %v, want %v", entries, err, want)
	}
	if _, err := s.ReadFile(ctx, dir+"/none"); !errors.Is(err, bouvet.ErrRPC) || !strings.Contains(err.Error(), "-32603") {
		t.Errorf("got %v, want RPC error -32603", err)
	}
}

// E5, G1, G4, K9: after Destroy every call says what state the sandbox is in.
func TestSandboxDestroy(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if err := s.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	<-s.Done()
	if got := s.State(); got != bouvet.Destroyed || s.Err() != nil {
		t.Errorf("got state %v and reason %v, want destroyed and none", got, s.Err())
	}
	for name, err := range callAll(t, s) {
		var state *bouvet.InvalidStateError
		if !errors.As(err, &state) || state.Expected != bouvet.Ready || state.Actual != bouvet.Destroyed {
			t.Errorf("%s: got %v, want InvalidState{ready, destroyed}", name, err)
		}
	}
}

func callAll(t *testing.T, s *bouvet.Sandbox) map[string]error {
	t.Helper()
	ctx := t.Context()
	errs := map[string]error{}
	_, errs["Execute"] = s.Execute(ctx, "true")
	_, errs["ExecuteCode"] = s.ExecuteCode(ctx, "sh", "true")
	_, errs["ReadFile"] = s.ReadFile(ctx, "/x")
	_, errs["ListDir"] = s.ListDir(ctx, "/x")
	errs["WriteFile"] = s.WriteFile(ctx, "/x", "")
	errs["Command"] = s.Command(ctx, "true").Run()
	errs["Attach"] = s.Attach(ctx, "x", 0).Run()
	errs["Ping"] = s.Client().Ping(ctx)
	return errs
}

// E5, L12, 2.11 no. 5: Executing counts the commands that run, and refuses none.
func TestSandboxExecuting(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	first := s.Command(t.Context(), "sh", "-c", "read x; exit 0")
	in, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	if got := s.State(); got != bouvet.Executing {
		t.Errorf("got %v, want executing", got)
	}
	// Concurrent commands are allowed, and files too.
	if r, err := s.Execute(t.Context(), "echo x"); err != nil || r.Stdout != "x\n" {
		t.Errorf("got %v, %v", r, err)
	}
	if err := s.WriteFile(t.Context(), dir+"/x", ""); err != nil {
		t.Error(err)
	}
	if got := s.State(); got != bouvet.Executing {
		t.Errorf("got %v, want executing", got)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	_ = first.Wait()
	if got := s.State(); got != bouvet.Ready {
		t.Errorf("got %v, want ready", got)
	}
	if err := s.Command(t.Context(), "/none").Run(); err == nil {
		t.Error("a missing program ran")
	}
	if got := s.State(); got != bouvet.Ready {
		t.Errorf("got %v after a failed start, want ready", got)
	}
}

// L7: Config.Timeout ends the command in the guest; what it wrote is told.
func TestSandboxTimeout(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{Timeout: 300 * time.Millisecond})
	start := time.Now()
	_, err := s.Execute(t.Context(), "echo begun; sleep 60; echo never > "+dir+"/after")
	var timeout *bouvet.TimeoutError
	if !errors.As(err, &timeout) || !errors.Is(err, bouvet.ErrTimedOut) {
		t.Fatalf("got %v, want a TimeoutError", err)
	}
	if timeout.Result == nil || timeout.Result.Stdout != "begun\n" {
		t.Errorf("got partial result %+v, want what was written", timeout.Result)
	}
	if got := time.Since(start); got > 10*time.Second {
		t.Errorf("took %v", got)
	}
	if err := s.Command(t.Context(), "sleep", "60").Run(); !errors.Is(err, bouvet.ErrTimedOut) {
		t.Errorf("got %v, want a command that timed out", err)
	}
	if r, err := s.Execute(t.Context(), "echo alive"); err != nil || r.Stdout != "alive\n" {
		t.Errorf("got %v, %v after a timeout", r, err)
	}
}

// T26: a machine that dies by itself ends calls under way and refuses later ones,
// soon, and is cleared up.
func TestMachineDies(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{})
	m := newManager(t, fake, bouvet.ManagerOptions{})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 3)
	go func() { _, err := s.Execute(t.Context(), "sleep 60"); results <- err }()
	cmd := s.Command(t.Context(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { results <- cmd.Wait() }()
	w, err := s.Client().Watch(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for range w.Events() {
		}
		results <- w.Err()
	}()
	start := time.Now()
	if !fake.Kill(s.ID().String()) {
		t.Fatal("no machine")
	}
	for range 3 {
		if err := <-results; !errors.Is(err, vm.ErrGone) || !errors.Is(err, bouvet.ErrVM) {
			t.Errorf("got %v, want ErrVM and ErrGone", err)
		}
	}
	<-s.Done()
	if got := s.State(); got != bouvet.Destroyed || !errors.Is(s.Err(), vm.ErrGone) {
		t.Errorf("got state %v and reason %v", got, s.Err())
	}
	for name, err := range callAll(t, s) {
		if !errors.Is(err, vm.ErrGone) || !errors.Is(err, bouvet.ErrVM) {
			t.Errorf("%s: got %v, want ErrVM and ErrGone", name, err)
		}
	}
	if got := time.Since(start); got > 5*time.Second {
		t.Errorf("took %v", got)
	}
	if got, err := m.Get(s.ID()); err != nil || got != s {
		t.Errorf("got %v, %v, want the dead sandbox", got, err)
	}
	if err := m.Destroy(t.Context(), s.ID()); err != nil {
		t.Error(err)
	}
	if got := fake.Living(); got != 0 {
		t.Errorf("got %d machines left", got)
	}
}

// E6, E7: creation as it should go, and each way in which it can fail, with
// nothing left.
func TestCreate(t *testing.T) {
	boom := errors.New("boom")
	for _, tt := range []struct {
		name  string
		opts  vmtest.FakeOptions
		point string // where the driver fails
		cfg   bouvet.Config
		want  error
	}{
		{"late agent", vmtest.FakeOptions{ReadyDelay: 50 * time.Millisecond}, "", bouvet.Config{}, nil},
		{"invalid configuration", vmtest.FakeOptions{}, "", bouvet.Config{MemoryMiB: 1}, bouvet.ErrInvalidConfig},
		{"kernel without a VM", vmtest.FakeOptions{}, "", bouvet.Config{KernelPath: "/vmlinux"}, bouvet.ErrInvalidConfig},
		{"detached without support", vmtest.FakeOptions{}, "", bouvet.Config{Detached: true}, bouvet.ErrInvalidConfig},
		{"driver fails", vmtest.FakeOptions{}, vmtest.BeforeCreate, bouvet.Config{}, boom},
		{"driver fails late", vmtest.FakeOptions{}, vmtest.AfterCreate, bouvet.Config{}, boom},
		{"silent agent", vmtest.FakeOptions{Guest: vmtest.Silent}, "", bouvet.Config{ConnectTimeout: 100 * time.Millisecond}, bouvet.ErrAgentTimeout},
		{"no agent in time", vmtest.FakeOptions{ReadyDelay: time.Minute}, "", bouvet.Config{ConnectTimeout: 100 * time.Millisecond}, bouvet.ErrAgentTimeout},
		{"agent that hangs up", vmtest.FakeOptions{Guest: vmtest.Scripted(func(context.Context, net.Conn, uint32) {})}, "", bouvet.Config{ConnectTimeout: 100 * time.Millisecond}, bouvet.ErrAgentTimeout},
		{"dies while connecting", vmtest.FakeOptions{Guest: vmtest.Silent, DieAfter: 50 * time.Millisecond}, "", bouvet.Config{}, vm.ErrGone},
		{"dies at once", vmtest.FakeOptions{Guest: func(context.Context, net.Listener) {}}, "", bouvet.Config{}, vm.ErrGone},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := vmtest.NewFake(t, tt.opts)
			images := &countingImages{}
			m := newManager(t, vmtest.NewFaulty(fake, func(point string, _ int) error {
				if point == tt.point {
					return boom
				}
				return nil
			}), bouvet.ManagerOptions{Images: images, MaxSandboxes: 1})
			start := time.Now()
			id, err := m.Create(t.Context(), tt.cfg)
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if got := time.Since(start); got > 5*time.Second {
				t.Errorf("took %v", got)
			}
			if err != nil {
				if !id.IsZero() || fake.Living() != 0 || images.held() != 0 || len(m.List()) != 0 {
					t.Errorf("left: id %v, %d machines, %d images, list %v", id, fake.Living(), images.held(), m.List())
				}
				return
			}
			if images.held() != 1 || images.last != bouvet.DefaultImage {
				t.Errorf("got %d images held, the last %q, want one, the default", images.held(), images.last)
			}
			if err := m.Destroy(t.Context(), id); err != nil || images.held() != 0 {
				t.Errorf("got %v and %d images held, want none", err, images.held())
			}
		})
	}
}

// countingImages counts the images that are held.
type countingImages struct {
	mu   sync.Mutex
	n    int
	last string
	err  error
}

func (i *countingImages) Acquire(_ context.Context, name string) (bouvet.Image, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.err != nil {
		return bouvet.Image{}, i.err
	}
	i.n++
	i.last = name
	var once sync.Once
	return bouvet.Image{Path: "/images/" + name, Digest: imageDigest, Release: func() {
		released := false
		once.Do(func() {
			i.mu.Lock()
			defer i.mu.Unlock()
			i.n--
			released = true
		})
		if !released {
			panic("image released twice")
		}
	}}, nil
}

// imageDigest is that of every image.
const imageDigest = "sha256:1111111111111111111111111111111111111111111111111111111111111111"

func (i *countingImages) held() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.n
}

func TestCreateWithoutImage(t *testing.T) {
	images := &countingImages{err: os.ErrNotExist}
	m := newManager(t, vmtest.NewFake(t, vmtest.FakeOptions{}), bouvet.ManagerOptions{Images: images})
	_, err := m.Create(t.Context(), bouvet.Config{Image: "none"})
	if want := `cannot open image "none": `; !errors.Is(err, os.ErrNotExist) || !strings.HasPrefix(fmt.Sprint(err), want) {
		t.Errorf("got %v, want %s", err, want)
	}
}

// graces records how gracefully machines are destroyed.
type graces struct {
	vm.Driver
	got chan time.Duration
}

func (g *graces) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	m, err := g.Driver.Create(ctx, c)
	if err != nil {
		return nil, err
	}
	return &gracesMachine{m, g}, nil
}

type gracesMachine struct {
	vm.Machine
	g *graces
}

func (m *gracesMachine) Destroy(ctx context.Context, grace time.Duration) error {
	m.g.got <- grace
	return m.Machine.Destroy(ctx, grace)
}

// G1, L15: a guest may stop by itself for a short while; one that is dead or only
// half made may not.
func TestStopGrace(t *testing.T) {
	for _, tt := range []struct {
		name  string
		cfg   bouvet.Config
		guest vmtest.Guest
		kill  bool
		want  time.Duration
	}{
		{"default", bouvet.Config{}, ready, false, 500 * time.Millisecond},
		{"longer", bouvet.Config{StopGrace: time.Second}, ready, false, time.Second},
		{"none", bouvet.Config{StopGrace: -1}, ready, false, 0},
		{"dead", bouvet.Config{}, ready, true, 0},
		{"half made", bouvet.Config{ConnectTimeout: 10 * time.Millisecond}, vmtest.Silent, false, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: tt.guest})
			driver := &graces{fake, make(chan time.Duration, 4)}
			m := newManager(t, driver, bouvet.ManagerOptions{})
			if id, err := m.Create(t.Context(), tt.cfg); err == nil {
				if tt.kill {
					fake.Kill(id.String())
				} else if err := m.Destroy(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			if got := <-driver.got; got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
