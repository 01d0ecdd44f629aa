package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/local"
)

// stateDir is this run's own: machines of other programs are not ours to look at.
var stateDir string

// machines is the directory of the machines' directories.
func machines() string { return filepath.Join(stateDir, "machines") }

func TestMain(m *testing.M) {
	local.Dispatch()
	testutil.Personas(map[string]func() int{"owner": own})
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "bouvet-e2e-")
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "machines"), 0o700)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stateDir = dir
	return m.Run()
}

// limit is how long anything but a deliberate wait may take on a busy host.
const limit = 60 * time.Second

// ledger fails t if it leaves anything behind.
func ledger(t *testing.T) {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{Dirs: []string{machines()}})
	before := cgroups(t)
	t.Cleanup(func() {
		for _, dir := range cgroups(t) {
			if !strings.Contains(strings.Join(before, "\n"), dir) && ours(dir) {
				t.Errorf("cgroup is left: %s", dir)
			}
		}
	})
}

// made holds the IDs of all sandboxes of this process: cgroups are shared with
// other programs.
var made = map[string]bool{}

func ours(cgroup string) bool { return made[filepath.Base(cgroup)] }

func cgroups(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/bouvet/*", "/sys/fs/cgroup/*/bouvet/*"} {
		dirs, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, dirs...)
	}
	return all
}

// options open this run's state.
func options(t testing.TB) local.Options {
	t.Helper()
	return local.Options{StateDir: stateDir, Exe: helper(t), Defaults: bouvet.Config{RootfsPath: imagetest.Default(t)}}
}

// open returns a manager that is closed at the end of t.
func open(t *testing.T) *bouvet.Manager {
	t.Helper()
	return openWith(t, options(t))
}

func openWith(t *testing.T, o local.Options) *bouvet.Manager {
	t.Helper()
	m, err := local.Open(timed(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(timed(t)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// box makes a sandbox in a manager of its own, with a ledger around both.
func box(t *testing.T, c bouvet.Config) *bouvet.Sandbox {
	t.Helper()
	ledger(t)
	return create(t, open(t), c)
}

func create(t *testing.T, m *bouvet.Manager, c bouvet.Config) *bouvet.Sandbox {
	t.Helper()
	c.ID = newID()
	s, err := m.CreateSandbox(timed(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newID returns an ID that the ledger knows as ours.
func newID() bouvet.SandboxID {
	id := bouvet.NewSandboxID()
	made[id.String()] = true
	return id
}

// timed returns a context that ends with t, or when that takes too long.
func timed(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// sh runs a script, which must succeed, and returns its output without the last
// newline.
func sh(t testing.TB, s *bouvet.Sandbox, script string) string {
	t.Helper()
	out, err := s.Command(timed(t), "sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%.200s: %v: %.2000s", script, err, out)
	}
	return strings.TrimSuffix(string(out), "\n")
}

// answers fails unless the agent answers within a second and a bit: what else goes
// on in the sandbox must not hold it up.
func answers(t testing.TB, s *bouvet.Sandbox) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.Client().Ping(ctx); err != nil {
		t.Fatalf("ping: %v", err)
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late.C:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// within fails unless done is closed in time.
func within(t testing.TB, d time.Duration, what string, done <-chan struct{}) {
	t.Helper()
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		t.Fatalf("not within %v: %s", d, what)
	}
}

// helper returns a program that can become a sandbox's kernel, which a test
// binary with the race detector, or a dynamically linked one, cannot.
func helper(t testing.TB) string {
	t.Helper()
	if _, err := local.Driver(t.Context(), local.Options{StateDir: stateDir, Driver: "gvisor"}); err == nil && !raceEnabled {
		return ""
	}
	for _, path := range []string{os.Getenv("BOUVET_HELPER"), "../../bin/bouvet"} {
		path, err := filepath.Abs(path)
		if err != nil {
			continue
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	t.Skip("this test binary cannot become a sandbox's kernel: run make build, name a bouvet binary in BOUVET_HELPER, or test with CGO_ENABLED=0")
	return ""
}
