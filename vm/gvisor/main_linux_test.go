package gvisor

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// testParent holds the cgroups of this run's machines.
var testParent = fmt.Sprintf("bouvet-test-%d", os.Getpid())

func TestMain(m *testing.M) {
	Dispatch()
	testutil.Personas(map[string]func() int{"owner": own})
	code := m.Run()
	if scratch != "" {
		_ = os.RemoveAll(scratch)
	}
	for _, dir := range cgroup.Find(testParent).Dirs("x") {
		_ = os.Remove(filepath.Dir(dir))
	}
	os.Exit(code)
}

// ledgered fails t if it leaves anything behind.
func ledgered(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
}

// scratch holds the programs and the agent's image, and what unprivileged users must reach.
var scratch string

var makeScratch = sync.OnceValue(func() error {
	var err error
	if scratch, err = os.MkdirTemp("", "gvisor-test-"); err != nil {
		return err
	}
	return os.Chmod(scratch, 0o755)
})

// makeAgent builds the stub agent and its image.
var makeAgent = sync.OnceValues(func() (string, error) {
	path, err := build("stubagent")
	if err != nil {
		return "", err
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return guest.Agent{Binary: binary, Digest: "sha256:stub"}.Image(scratch)
})

func testDriver(t testing.TB) *Driver {
	t.Helper()
	agent, err := makeAgent()
	if err != nil {
		t.Fatalf("cannot make agent image: %v", err)
	}
	d, err := New(Options{StateDir: t.TempDir(), AgentImage: agent, Exe: helperExe(t), CgroupParent: testParent})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// options are those that make a driver like d.
func options(d *Driver) Options {
	return Options{StateDir: filepath.Dir(d.keeper.Base), AgentImage: d.agent, Exe: d.exe, CgroupParent: testParent}
}

// helperExe is the executable that can run a sentry: this one, or another if this
// one is built with the race detector or dynamically linked.
func helperExe(t testing.TB) string {
	t.Helper()
	if !raceEnabled && checkExe("/proc/self/exe") == nil {
		return ""
	}
	exe, err := makeHelper()
	if err != nil {
		t.Fatalf("cannot make helper: %v", err)
	}
	return exe
}

var makeHelper = sync.OnceValues(func() (string, error) {
	exe := os.Getenv("BOUVET_HELPER") // the absolute path of bin/bouvet
	if _, err := os.Stat(exe); err == nil {
		return exe, nil
	}
	return build("helper")
})

// build builds a program of testdata, statically.
func build(name string) (string, error) {
	if err := makeScratch(); err != nil {
		return "", err
	}
	path := filepath.Join(scratch, name)
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "./testdata/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
}

func newID() string {
	b := make([]byte, 10)
	_, _ = rand.Read(b)
	return "t" + hex.EncodeToString(b)
}

func testConfig(t testing.TB) vm.Config {
	return vm.Config{ID: newID(), Image: imagetest.Default(t), MemoryMiB: 128, VCPUs: 2}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(60*time.Second))
	t.Cleanup(cancel)
	return ctx
}

func create(t testing.TB, d *Driver, c vm.Config) vm.Machine {
	t.Helper()
	m, err := d.Create(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	})
	return m
}

// ask sends one line to the stub agent and returns its answer.
func ask(ctx context.Context, m interface {
	Dial(ctx context.Context, port uint32) (net.Conn, error)
}, line string,
) (string, error) {
	c, err := m.Dial(ctx, 52)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	out, err := io.ReadAll(bufio.NewReader(c))
	return string(out), err
}
