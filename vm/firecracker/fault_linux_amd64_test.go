package firecracker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// scoped is a ledger of what the machines of o are made of.
func scoped(t testing.TB, o *Options) {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{Dirs: []string{filepath.Join(o.StateDir, "machines")}, Cgroups: []string{testParent}})
}

// T29: whatever goes wrong at the start is told with its reason, and leaves nothing,
// processes included.
func TestDoesNotStart(t *testing.T) {
	for _, tt := range []struct {
		fault, at, want string
		limit           time.Duration
	}{
		{"jailer fails", "", "failed to do what was asked", 0},
		{"no socket", "", "deadline", 500 * time.Millisecond},
		{"ends at once", "", "it is not my day", 0},
		{"refuses", pathVersion, "this is not to be", 0},
		{"refuses", pathMachineConfig, "this is not to be", 0},
		{"refuses", pathActions, "this is not to be", 0},
		{"babbles", pathVsock, "status 400", 0},
		{"never ends", pathVersion, "longer than", 0},
		{"resets", pathBootSource, "/boot-source", 0},
		{"hangs", pathVersion, "deadline", 500 * time.Millisecond},
		{"hangs", pathActions, "deadline", 800 * time.Millisecond},
		{"exits", pathVersion, "I have had enough", 0},
		{"exits", pathDrives + jailImage, "I have had enough", 0},
		{"refuses", pathDrives + jailDisk, "this is not to be", 0},
		{"exits", pathActions, "I have had enough", 0},
		{"seccomp", pathActions, "filter of system calls", 0},
		{"signal", pathEntropy, "signal 9", 0},
	} {
		t.Run(tt.fault+" "+strings.ReplaceAll(tt.at, "/", " "), func(t *testing.T) {
			o := fakeOptions(t, fakeSetup{Fault: tt.fault, At: tt.at})
			c := testConfig(t, fakeImage(t))
			c.DiskMiB = vm.MinDiskMiB
			scoped(t, &o)
			d := testDriver(t, o)
			ctx := testContext(t)
			if tt.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.limit)
				defer cancel()
			}
			m, err := d.Create(ctx, c)
			if err == nil {
				_ = m.Destroy(testContext(t), 0)
			}
			wantError(t, "Create", err, tt.want)
			if err != nil && (len(err.Error()) > 4000 || strings.Contains(err.Error(), "\x1b")) {
				t.Errorf("the error repeats what it was told: %d bytes", len(err.Error()))
			}
			gone(t, d)
			if pids := processes(t, d, c.ID); len(pids) > 0 {
				t.Errorf("processes are left: %v", pids)
			}
		})
	}
}

// T31, T44, T55: what cannot be used is refused with the remedy.
func TestRefused(t *testing.T) {
	open := t.TempDir() // for everybody to write to
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		setup fakeSetup
		spoil func(*Options)
		want  string
	}{
		{"CVE-2026-5747", fakeSetup{Version: "1.14.3"}, nil, "CVE-2026-5747"},
		{"too old", fakeSetup{Version: "1.12.0"}, nil, "too old"},
		{"another jailer", fakeSetup{Jailer: "1.15.1"}, nil, "one release"},
		{"no Firecracker", fakeSetup{}, func(o *Options) { o.Program = "/no/such/program" }, "install a release"},
		{"no jailer", fakeSetup{}, func(o *Options) { o.Jailer = "/no/such/program" }, "install a release"},
		{"no program", fakeSetup{}, func(o *Options) { o.Program = "/bin/false" }, "--version"},
		{"no version", fakeSetup{}, func(o *Options) { o.Program = "/bin/true" }, "cannot find a version"},
		{"no vsock", fakeSetup{}, func(o *Options) { o.Kernel.Manifest.Features = nil }, "bouvet kernel fetch"},
		{"no agent", fakeSetup{}, func(o *Options) { o.Agent = nil }, "no agent"},
		{"relative state", fakeSetup{}, func(o *Options) { o.StateDir = "state" }, "absolute"},
		{"open state", fakeSetup{}, func(o *Options) { o.StateDir = filepath.Join(open, "state") }, "chmod go-w"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := fakeOptions(t, tt.setup)
			if tt.spoil != nil {
				tt.spoil(&o)
			}
			_, err := New(o)
			wantError(t, "New", err, tt.want)
		})
	}
}

// What a machine cannot be made of is refused.
func TestCreateRefused(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	secret := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(secret, make([]byte, sectorSize), 0o600); err != nil {
		t.Fatal(err)
	}
	scoped(t, &o)
	d := testDriver(t, o)
	for _, tt := range []struct {
		name  string
		spoil func(*vm.Config)
		want  string
		is    error
	}{
		{"T31 image is a directory", func(c *vm.Config) { c.Image = o.StateDir }, "not a regular file", vm.ErrInvalidConfig},
		{"T31 image is a device", func(c *vm.Config) { c.Image = "/dev/null" }, "not a regular file", vm.ErrInvalidConfig},
		{"image is secret", func(c *vm.Config) { c.Image = secret }, "chmod a+r", vm.ErrInvalidConfig},
		{"little memory", func(c *vm.Config) { c.MemoryMiB = MinMemoryMiB - 1 }, "at least", vm.ErrInvalidConfig},
		{"many processors", func(c *vm.Config) { c.VCPUs = MaxVCPUs + 1 }, "vCPUs", vm.ErrInvalidConfig},
		{"a tiny disk", func(c *vm.Config) { c.DiskMiB = vm.MinDiskMiB - 1 }, "disk", vm.ErrInvalidConfig},
	} {
		c := testConfig(t, image)
		tt.spoil(&c)
		_, err := d.Create(testContext(t), c)
		wantError(t, tt.name, err, tt.want)
		if !errors.Is(err, tt.is) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.is)
		}
		gone(t, d)
	}
	// The Firecracker that was asked for its version is another now.
	write(t, filepath.Join(filepath.Dir(o.Program), fakeSetupName), `{"Version":"1.16.3","Jailer":"1.16.3"}`)
	_, err := d.Create(testContext(t), testConfig(t, image))
	wantError(t, "another Firecracker", err, "was 1.16.2 before")
	gone(t, d)
}

// created is a machine of a fake, which is destroyed in the end.
func created(t testing.TB, d *Driver, c vm.Config) *machine {
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
	return m.(*machine)
}

// T27: a Firecracker that hangs is found out and killed, with all that is its own.
func TestHungIsKilled(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	d.guardEvery = 100 * time.Millisecond
	m := created(t, d, testConfig(t, image))
	pids := firecrackers(t, m)
	if len(pids) != 1 {
		t.Fatalf("got %v, want one Firecracker", pids)
	}
	if err := unix.Kill(pids[0], unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Done():
	case <-testContext(t).Done():
		t.Fatal("the machine is still there")
	}
	if err := m.Err(); !errors.Is(err, vm.ErrGone) {
		t.Errorf("got %v, want ErrGone", err)
	}
	wantError(t, "Err", m.Err(), "did not answer")
	if err := m.Pause(testContext(t)); !errors.Is(err, vm.ErrGone) {
		t.Errorf("Pause: got %v, want ErrGone", err)
	}
}

// T53: the posture that is ours to give: namespaces, limits, a user per machine, the
// defaults of the jailer and of Firecracker, and files that are read-only and no
// others. (What they make of it is for the real ones to show.)
func TestPosture(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	c := testConfig(t, image)
	m := created(t, d, c)
	pids := firecrackers(t, m)
	if len(pids) != 1 {
		t.Fatalf("got %v, want one Firecracker", pids)
	}
	proc := fmt.Sprintf("/proc/%d", pids[0])
	for _, ns := range []string{"mnt", "net", "pid"} {
		ours, err1 := os.Readlink("/proc/self/ns/" + ns)
		theirs, err2 := os.Readlink(proc + "/ns/" + ns)
		if err := errors.Join(err1, err2); err != nil || ours == theirs {
			t.Errorf("%s: got %s for both, %v", ns, theirs, err)
		}
	}
	for _, dir := range d.keeper.Cgroups.Dirs(c.ID) {
		got, err := cgroup.PIDs(dir)
		if err != nil || !slices.Contains(got, pids[0]) || !slices.Contains(got, m.process.cmd.Process.Pid) {
			t.Errorf("%s: got %v, %v", dir, got, err)
		}
	}
	cmdline, err := os.ReadFile(proc + "/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"seccomp", "pci", "daemonize"} {
		if strings.Contains(string(cmdline)+strings.Join(d.jailer(m.jail), " "), bad) {
			t.Errorf("%q is on the command line %q", bad, cmdline)
		}
	}
	mounts, err := os.ReadFile(proc + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{jailKernel, jailInitramfs, jailImage} {
		found := false
		for line := range strings.Lines(string(mounts)) {
			fields := strings.Fields(line)
			if fields[4] == filepath.Join(m.jail.path, name) {
				found = true
				if !strings.HasPrefix(fields[5], "ro,nosuid,nodev,noexec") {
					t.Errorf("%s is mounted %s", name, fields[5])
				}
			}
		}
		if !found {
			t.Errorf("%s is not mounted in the jail", name)
		}
	}
	if data, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(data), m.jail.path) {
		t.Errorf("the jail's mounts are seen from outside, %v", err)
	}
	if a, b := created(t, d, testConfig(t, image)).jail.user, m.jail.user; a == b || a == 0 || b == 0 {
		t.Errorf("two machines are of users %d and %d", a, b)
	}
}

// T44: what the machine's user puts in place of a socket, or of what was saved, leads
// nowhere.
func TestJailLinks(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	outside := filepath.Join(t.TempDir(), "outside")
	write(t, outside, "secret")
	scoped(t, &o)
	d := testDriver(t, o)
	m := created(t, d, testConfig(t, image))
	path := filepath.Join(m.jail.path, "link")
	for name, plant := range map[string]func() error{
		"symbolic link":    func() error { return os.Symlink(outside, path) },
		"link to a socket": func() error { return os.Symlink(jailVsock, path) },
		"hard link":        func() error { return os.Link(outside, path) },
		"another's file":   func() error { return os.WriteFile(path, nil, 0o600) },
	} {
		if err := plant(); err != nil {
			t.Fatal(err)
		}
		if f, err := m.jail.open("link", os.O_RDONLY|unix.O_NONBLOCK, unix.S_IFREG); err == nil {
			t.Errorf("%s was opened", name)
			_ = f.Close()
		}
		if conn, err := m.jail.dial(testContext(t), "link"); err == nil {
			t.Errorf("%s was dialled", name)
			_ = conn.Close()
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := m.jail.open("../root/"+jailVsock, unix.O_PATH, unix.S_IFSOCK); err == nil {
		t.Error("a path led out of the jail")
		_ = f.Close()
	}
}

// T44: a jail that is there already is not used.
func TestStaleJail(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	scoped(t, &o)
	d := testDriver(t, o)
	c := testConfig(t, "/image")
	if err := os.MkdirAll(filepath.Join(d.keeper.Base, c.ID, jailBase), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Create(testContext(t), c); !errors.Is(err, vm.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	if err := os.RemoveAll(filepath.Join(d.keeper.Base, c.ID)); err != nil {
		t.Fatal(err)
	}
}

// A guest that never comes up holds nobody up longer than they want to wait.
func TestGuestIsSilent(t *testing.T) {
	o := fakeOptions(t, fakeSetup{Fault: "guest is silent"})
	image := fakeImage(t)
	scoped(t, &o)
	m := created(t, testDriver(t, o), testConfig(t, image))
	ctx, cancel := context.WithTimeout(testContext(t), 700*time.Millisecond)
	defer cancel()
	if _, err := m.Dial(ctx, 52); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want DeadlineExceeded", err)
	}
	if got := string(m.Console()); !strings.Contains(got, "Linux version fake") {
		t.Errorf("console: got %q", got)
	}
}
