package firecracker

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// The real programs, for those tests that need them.
const (
	programEnv = "BOUVET_FIRECRACKER"
	jailerEnv  = "BOUVET_JAILER"
)

// realOptions are those of a driver of the real Firecracker.
func realOptions(t testing.TB) Options {
	t.Helper()
	program, jailer := os.Getenv(programEnv), os.Getenv(jailerEnv)
	if program == "" || jailer == "" {
		t.Skip("there is no Firecracker: set BOUVET_FIRECRACKER and BOUVET_JAILER to the programs of one release")
	}
	if err := kvm.Check(testContext(t)); err != nil {
		t.Skipf("%v: run `make e2e-firecracker FIRECRACKER=%s JAILER=%s`, which emulates a machine with KVM", err, program, jailer)
	}
	needRoot(t)
	dir, err := statedir.Kernels("")
	if err != nil {
		t.Fatal(err)
	}
	store, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	k, err := store.Find("")
	if err != nil {
		t.Skipf("%v: run `bouvet kernel fetch`", err)
	}
	agent, err := guest.Resolve()
	if err != nil {
		t.Skipf("%v: run `make build`", err)
	}
	return Options{StateDir: stateDir(t), Agent: agent.Binary, Kernel: k, Program: program, Jailer: jailer, CgroupParent: testParent}
}

// The contract of package vm, with the real Firecracker.
func TestRealConformance(t *testing.T) { vmtest.TestDriver(t, realSubject(t)) }

// Machines of the real Firecracker come and go and leave nothing.
func TestRealSoak(t *testing.T) { vmtest.TestSoak(t, realSubject(t), 5) }

func realSubject(t *testing.T) vmtest.Subject {
	t.Helper()
	o := realOptions(t)
	return vmtest.Subject{
		New:   func(t testing.TB) vm.Driver { return testDriver(t, o) },
		Image: imagetest.Default(t),
		Kill: func(t testing.TB, m vm.Machine) {
			for _, pid := range firecrackers(t, m) {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		},
		CPUTime: cpuTime,
		Scope:   testutil.Scope{Dirs: []string{filepath.Join(o.StateDir, "machines")}, Cgroups: []string{testParent}},
	}
}

// cpuTime is what Firecracker has used.
func cpuTime(t testing.TB, m vm.Machine) time.Duration {
	t.Helper()
	const tick = time.Second / 100
	var total time.Duration
	for _, pid := range firecrackers(t, m) {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		for _, field := range fields[11:13] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			total += time.Duration(n) * tick
		}
	}
	return total
}

// T53: what the jailer and Firecracker make of it: no privileges, a filter on every
// thread, and a user of the machine's own.
func TestRealPosture(t *testing.T) {
	o := realOptions(t)
	scoped(t, &o)
	m := created(t, testDriver(t, o), testConfig(t, imagetest.Default(t)))
	pids := firecrackers(t, m)
	if len(pids) != 1 {
		t.Fatalf("got %v, want one Firecracker", pids)
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pids[0]))
	if err != nil || len(threads) < 2 {
		t.Fatalf("got threads %v, %v", threads, err)
	}
	for _, path := range threads {
		status, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			fmt.Sprintf("\nUid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", m.jail.user), fmt.Sprintf("\nGid:\t%[1]d\t%[1]d\t%[1]d\t%[1]d\n", m.jail.user),
			"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n",
		} {
			if !strings.Contains(string(status), want) {
				t.Errorf("%s: want %q in %s", path, want, status)
			}
		}
	}
	if root, err := os.Stat(fmt.Sprintf("/proc/%d/root/usr", pids[0])); err == nil {
		t.Errorf("the host's %s is seen in the jail", root.Name())
	}
}
