package local_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/local"
)

func TestMain(m *testing.M) {
	local.Dispatch()
	os.Exit(m.Run())
}

func TestOptions(t *testing.T) {
	for _, opts := range []local.Options{{Driver: "docker"}, {StateDir: "relative"}} {
		if _, err := local.Open(t.Context(), opts); !errors.Is(err, bouvet.ErrInvalidConfig) {
			t.Errorf("%+v: got %v, want an invalid configuration", opts, err)
		}
	}
}

// F2: the configuration says where everything lives. Images, machines and the agent
// are in that one directory, which other users cannot enter, and nowhere else. (The
// paths of a kernel and of Firecracker are a microVM driver's.)
func TestStateDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	opts := local.Options{StateDir: dir, Exe: helper(t), Defaults: bouvet.Config{Image: "tiny"}}
	store, err := local.Store(opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Import(t.Context(), "tiny", t.TempDir(), image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	m, err := local.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	// There is no image "default" here, wherever else there may be one.
	if _, err := m.Create(t.Context(), bouvet.Config{Image: bouvet.DefaultImage}); !errors.Is(err, image.ErrNotFound) {
		t.Errorf("image of another state directory: got %v, want not found", err)
	}
	// The image is empty, the agent is not of it: there is a machine nevertheless.
	id, err := m.Create(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "machines", id.String())); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"images", "machines", "agent"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: got %v, %v, want a directory of mode 0700", name, info, err)
		}
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// K2 to K10 in one: a real sandbox on this machine, from end to end. The unit tests
// and those with a mock client that K10 wants too are those of package bouvet.
func TestOpen(t *testing.T) {
	imagetest.Default(t)
	m, err := local.Open(t.Context(), local.Options{Exe: helper(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{Hostname: "box"})
	if err != nil {
		t.Fatal(err)
	}
	for lang, code := range map[string]string{
		"python": "print(6 * 7)",
		"node":   "console.log(6 * 7)",
		"bash":   "echo $((6 * 7))",
	} {
		if r, err := s.ExecuteCode(t.Context(), lang, code); err != nil || r.Stdout != "42\n" {
			t.Errorf("%s: got %+v, %v, want 42", lang, r, err)
		}
	}
	if err := s.WriteFile(t.Context(), "/tmp/a/b", "text"); err != nil {
		t.Error(err)
	}
	if got, err := s.ReadFile(t.Context(), "/tmp/a/b"); got != "text" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	cmd := s.Command(t.Context(), "cat", "/etc/hostname", "-")
	cmd.Stdin = strings.NewReader("through\n")
	if out, err := cmd.Output(); err != nil || !strings.HasSuffix(string(out), "through\n") {
		t.Errorf("got %q, %v", out, err)
	}
	if _, err := m.Create(t.Context(), bouvet.Config{Image: "no-such-image"}); err == nil {
		t.Error("an image that does not exist was opened")
	}
}

// helper returns a program that can become a sandbox's kernel, which a test
// binary that has the race detector or is dynamically linked cannot.
func helper(t testing.TB) string {
	t.Helper()
	if _, err := local.Driver(t.Context(), local.Options{Driver: "gvisor"}); err == nil && !raceEnabled {
		return ""
	}
	for _, path := range []string{os.Getenv("BOUVET_HELPER"), "../bin/bouvet"} {
		if path, err := filepath.Abs(path); err == nil {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	t.Skip("this test binary cannot become a sandbox's kernel: run make build, name a bouvet binary in BOUVET_HELPER, or test with CGO_ENABLED=0")
	return ""
}

// F4, G1, G2, G3, G4, T39: several real sandboxes at once, destroyed in every way, and
// nothing left.
func TestManyAtOnce(t *testing.T) {
	imagetest.Default(t)
	exe := helper(t)
	testutil.Ledger(t, testutil.Scope{})
	m, err := local.Open(t.Context(), local.Options{Exe: exe, Defaults: bouvet.Config{MemoryMiB: 64}})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 12 {
		wg.Go(func() {
			s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
			if err != nil {
				t.Error(err)
				return
			}
			want := fmt.Sprintln("sandbox", i)
			if r, err := s.Execute(t.Context(), "echo sandbox "+strconv.Itoa(i)); err != nil || r.Stdout != want {
				t.Errorf("got %+v, %v, want %q", r, err, want)
			}
			switch i % 4 {
			case 0:
				err = s.Destroy(t.Context())
			case 1:
				err = m.Destroy(t.Context(), s.ID())
			case 2: // in the middle of a command
				cmd := s.Command(t.Context(), "sleep", "60")
				if err := cmd.Start(); err != nil {
					t.Error(err)
				}
				err = m.Destroy(t.Context(), s.ID())
				if err := cmd.Wait(); !errors.Is(err, bouvet.ErrInvalidState) {
					t.Errorf("got %v, want an invalid state", err)
				}
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
