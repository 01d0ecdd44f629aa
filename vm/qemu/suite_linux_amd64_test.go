package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// testParent holds the cgroups of this run's machines.
var testParent = fmt.Sprintf("bouvet-test-%d", os.Getpid())

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{"owner": own})
	life.Ready() // so that no ledger sees its thread come
	code := m.Run()
	for _, dir := range cgroup.Find(testParent).Dirs("x") {
		_ = os.Remove(filepath.Dir(dir))
	}
	os.Exit(code)
}

// testKernel is the kernel of this host's user.
func testKernel(t testing.TB) kernel.Kernel {
	t.Helper()
	if _, err := exec.LookPath(Program); err != nil {
		t.Skipf("%v: run `apt-get install %s`", err, Package)
	}
	dir, err := statedir.Kernels("")
	if err != nil {
		t.Fatal(err)
	}
	store, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	k, err := store.Find("")
	if errors.Is(err, kernel.ErrNone) {
		t.Skipf("%v: run `bouvet kernel fetch`", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// testAgent is the agent that the product carries.
var testAgent = sync.OnceValues(func() ([]byte, error) {
	if agent, ok := guest.Binary(); ok {
		return agent, nil
	}
	dir, err := os.MkdirTemp("", "qemu-test-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, "agent")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "../../cmd/bouvet-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	return os.ReadFile(path)
})

func testOptions(t testing.TB, state string) Options {
	t.Helper()
	k := testKernel(t)
	agent, err := testAgent()
	if err != nil {
		t.Fatal(err)
	}
	return Options{StateDir: state, Agent: agent, Kernel: k, Accel: os.Getenv(AccelEnv), CgroupParent: testParent}
}

func testDriver(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(60*time.Second))
	t.Cleanup(cancel)
	return ctx
}

// The contract of package vm, with the real agent on the default image.
func TestConformance(t *testing.T) { vmtest.TestDriver(t, subject(t)) }

// Machines come and go and leave nothing.
func TestSoak(t *testing.T) { vmtest.TestSoak(t, subject(t), 3) }

func subject(t *testing.T) vmtest.Subject {
	t.Helper()
	state := t.TempDir()
	machines := filepath.Join(state, "machines")
	if err := os.Mkdir(machines, 0o700); err != nil {
		t.Fatal(err)
	}
	o := testOptions(t, state)
	return vmtest.Subject{
		New:   func(t testing.TB) vm.Driver { return testDriver(t, o) },
		Image: imagetest.Default(t),
		Kill: func(t testing.TB, m vm.Machine) {
			if err := unix.Kill(m.(*machine).process.cmd.Process.Pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		CPUTime: cpuTime,
		Scope:   testutil.Scope{Dirs: []string{machines}, Cgroups: []string{testParent}},
	}
}

// cpuTime is what QEMU has used.
func cpuTime(t testing.TB, m vm.Machine) time.Duration {
	t.Helper()
	const tick = time.Second / 100
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.(*machine).process.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	var total time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		total += time.Duration(n) * tick
	}
	return total
}
