package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// testParent holds the cgroups of this run's machines.
var testParent = fmt.Sprintf("bouvet-test-%d", os.Getpid())

func TestMain(m *testing.M) {
	Dispatch()
	fakes()
	testutil.Personas(map[string]func() int{"owner": own})
	life.Ready()
	code := m.Run()
	if programs != "" {
		_ = os.RemoveAll(programs)
	}
	for _, dir := range cgroup.Find(testParent).Dirs("x") {
		_ = os.Remove(filepath.Dir(dir))
	}
	os.Exit(code)
}

// fakeVersion is what the fake is if nothing else is said.
const fakeVersion = "1.16.2"

// programs holds this program once under another name.
var programs string

var makePrograms = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "firecracker-test-")
	if err != nil {
		return err
	}
	programs = dir
	return copyProgram("/proc/self/exe", filepath.Join(dir, Program))
})

// needRoot skips what makes jails.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a jail needs root: run as root")
	}
	// A container's root may lack what a jailer needs.
	dir := t.TempDir()
	if err := unix.Mknod(filepath.Join(dir, "kvm"), unix.S_IFCHR|0o600, int(unix.Mkdev(10, 232))); err != nil {
		t.Skipf("a jail needs CAP_MKNOD: %v: run in a container with it", err)
	}
}

// fakeOptions are those of a driver of the fakes.
func fakeOptions(t testing.TB, setup fakeSetup) Options {
	t.Helper()
	needRoot(t)
	if err := makePrograms(); err != nil {
		t.Fatal(err)
	}
	if setup.Version == "" {
		setup.Version = fakeVersion
	}
	if setup.Jailer == "" {
		setup.Jailer = setup.Version
	}
	dir := t.TempDir()
	for _, name := range []string{Program, JailerProgram} {
		if err := os.Link(filepath.Join(programs, Program), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	data, err := json.Marshal(setup)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, fakeSetupName), string(data))
	write(t, filepath.Join(dir, "vmlinux"), "kernel")
	return Options{
		StateDir: stateDir(t), Agent: []byte("agent"), CgroupParent: testParent,
		Kernel: kernel.Kernel{
			Digest: "sha256:fake", Dir: dir,
			Manifest: kernel.Manifest{Image: kernel.Part{Name: "vmlinux"}, Features: []kernel.Feature{kernel.Vsock}},
		},
		Program: filepath.Join(dir, Program), Jailer: filepath.Join(dir, JailerProgram),
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// stateDir has a directory of machines, for a ledger to look at.
func stateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "machines"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
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

// fakeImage is an image for those who look at none.
func fakeImage(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	write(t, path, strings.Repeat("\x00", sectorSize))
	return path
}

func testConfig(t testing.TB, image string) vm.Config {
	t.Helper()
	return vm.Config{ID: fmt.Sprintf("test-%d", time.Now().UnixNano()), Image: image, MemoryMiB: 128, VCPUs: 1}
}

// A fakeDriver says that its machines isolate nothing: their commands run here.
type fakeDriver struct{ *Driver }

func (d fakeDriver) Features() vm.Features {
	f := d.Driver.Features()
	f.Isolation = "fake"
	return f
}

// firecrackers are the processes of machine m that are Firecracker.
func firecrackers(t testing.TB, m vm.Machine) []int {
	t.Helper()
	pids, err := rundir.Carriers(apiSocket(m.(*machine).Dir().Path()))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(pids, func(pid int) bool { return pid == m.(*machine).process.cmd.Process.Pid })
}

// The contract of package vm, with the real agent behind a strict fake. The machine
// dies in turn with Firecracker and with the warden (threat T26).
func TestConformance(t *testing.T) { vmtest.TestDriver(t, fakeSubject(t)) }

// Machines come and go and leave nothing.
func TestSoak(t *testing.T) { vmtest.TestSoak(t, fakeSubject(t), 100) }

func fakeSubject(t *testing.T) vmtest.Subject {
	t.Helper()
	o := fakeOptions(t, fakeSetup{})
	kills := 0
	return vmtest.Subject{
		New:   func(t testing.TB) vm.Driver { return fakeDriver{testDriver(t, o)} },
		Image: fakeImage(t),
		Kill: func(t testing.TB, m vm.Machine) {
			pid := m.(*machine).process.cmd.Process.Pid
			if all := firecrackers(t, m); kills%2 == 1 && len(all) == 1 {
				pid = all[0]
			}
			kills++
			if err := unix.Kill(pid, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		Scope: testutil.Scope{Dirs: []string{filepath.Join(o.StateDir, "machines")}, Cgroups: []string{testParent}},
	}
}

// gone fails unless there is nothing left of any machine of d.
func gone(t testing.TB, d *Driver) {
	t.Helper()
	entries, err := os.ReadDir(d.keeper.Base)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left over: %s", e.Name())
	}
}

func wantError(t testing.TB, what string, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
}
