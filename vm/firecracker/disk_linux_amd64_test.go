package firecracker

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm"
)

const testDiskMiB = 32

// lifetimes is how many guests have run on the disk at path, as the fake counts them.
func lifetimes(t *testing.T, path string) int {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], testDiskMiB<<20-1); err != nil {
		t.Fatal(err)
	}
	return int(b[0])
}

func diskOf(m *machine) string { return m.Dir().Join(diskFile) }

// T03, T44, T53: a machine's disk is a sparse file of its own user's, outside the jail,
// and the only one that it can write to.
func TestDisk(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	if !d.Features().Disk {
		t.Error("Features does not promise disks")
	}
	c := testConfig(t, image)
	c.DiskMiB = testDiskMiB
	m := created(t, d, c)
	var st unix.Stat_t
	if err := unix.Lstat(diskOf(m), &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode != unix.S_IFREG|0o600 || st.Uid != m.jail.user || st.Gid != m.jail.user || st.Size != testDiskMiB<<20 || st.Blocks*512 > 2<<20 {
		t.Errorf("got mode %o of user %d, group %d, %d bytes, of which %d are there", st.Mode, st.Uid, st.Gid, st.Size, st.Blocks*512)
	}
	if n := lifetimes(t, diskOf(m)); n != 1 {
		t.Errorf("%d guests have run on the disk, want 1", n)
	}
	pids := firecrackers(t, m)
	if len(pids) != 1 {
		t.Fatalf("got %v, want one Firecracker", pids)
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pids[0]))
	if err != nil {
		t.Fatal(err)
	}
	writable := 0
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if strings.HasPrefix(fields[4], m.jail.path+"/") && strings.HasPrefix(fields[5], "rw,") {
			writable++
			if fields[4] != filepath.Join(m.jail.path, jailDisk) || !strings.HasPrefix(fields[5], "rw,nosuid,nodev,noexec") {
				t.Errorf("mounted in the jail: %s", line)
			}
		}
	}
	if writable != 1 {
		t.Errorf("%d files can be written to, want the disk alone", writable)
	}
	// What is in its place in the jail leads nowhere: the mount is not seen here, and
	// snapshots are not made of it.
	if info, err := os.Lstat(filepath.Join(m.jail.path, jailDisk)); err != nil || info.Size() != 0 {
		t.Errorf("the disk is seen in the jail from outside: %v, %v", info, err)
	}
	// The next one begins empty.
	next := testConfig(t, image)
	next.DiskMiB = testDiskMiB
	if n := lifetimes(t, diskOf(created(t, d, next))); n != 1 {
		t.Errorf("%d guests have run on another machine's disk, want 1", n)
	}
}

// A snapshot has the disk as it was, and every machine that is restored has its own.
func TestDiskIsSaved(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	c := testConfig(t, image)
	c.DiskMiB = testDiskMiB
	m := created(t, d, c)
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Snapshot(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, diskFile), &st); err != nil || st.Uid != 0 || st.Blocks*512 > 2<<20 {
		t.Errorf("the copy is of user %d and takes %d bytes, %v", st.Uid, st.Blocks*512, err)
	}
	var clones []*machine
	for i := range 3 {
		c := testConfig(t, image)
		c.DiskMiB = testDiskMiB
		clone, err := d.Restore(testContext(t), c, dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := clone.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		})
		clones = append(clones, clone.(*machine))
		if n := lifetimes(t, diskOf(clones[i])); n != 2 {
			t.Errorf("clone %d: %d guests have run on its disk, want the original and itself", i, n)
		}
	}
	for what, path := range map[string]string{"the original": diskOf(m), "the snapshot": filepath.Join(dir, diskFile)} {
		if n := lifetimes(t, path); n != 1 {
			t.Errorf("%s: %d guests have run on its disk, want 1", what, n)
		}
	}
	for name, spoil := range map[string]func(*vm.Config){
		"a larger disk": func(c *vm.Config) { c.DiskMiB *= 2 },
		"no disk":       func(c *vm.Config) { c.DiskMiB = 0 },
	} {
		c := testConfig(t, image)
		c.DiskMiB = testDiskMiB
		spoil(&c)
		if _, err := d.Restore(testContext(t), c, dir); !errors.Is(err, vm.ErrBadSnapshot) {
			t.Errorf("%s: got %v, want ErrBadSnapshot", name, err)
		}
	}
}

// T03, T36: where the host's disk is full, no machine is made or saved, which is told,
// and what runs runs on.
func TestHostDiskFull(t *testing.T) {
	o := fakeOptions(t, fakeSetup{})
	image := fakeImage(t)
	if err := unix.Mount("tmpfs", o.StateDir, "tmpfs", 0, "size=256m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v: run with CAP_SYS_ADMIN", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(o.StateDir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(o.StateDir, "machines"), 0o700); err != nil {
		t.Fatal(err)
	}
	scoped(t, &o)
	d := testDriver(t, o)
	c := testConfig(t, image)
	c.DiskMiB = testDiskMiB
	m := created(t, d, c)
	saved := filepath.Join(t.TempDir(), "snapshot") // elsewhere: there is room
	full := filepath.Join(o.StateDir, "snapshot")
	if err := errors.Join(os.Mkdir(saved, 0o700), os.Mkdir(full, 0o700), m.Snapshot(testContext(t), saved)); err != nil {
		t.Fatal(err)
	}
	ballast, err := os.OpenFile(filepath.Join(o.StateDir, "ballast"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	for page := make([]byte, 4<<10); err == nil; {
		_, err = ballast.Write(page)
	}
	if err := ballast.Close(); err != nil {
		t.Fatal(err)
	}
	again := testConfig(t, image)
	again.DiskMiB = testDiskMiB
	_, create := d.Create(testContext(t), again)
	_, restore := d.Restore(testContext(t), again, saved)
	for what, err := range map[string]error{"Create": create, "Restore": restore, "Snapshot": m.Snapshot(testContext(t), full)} {
		if err == nil || (!errors.Is(err, unix.ENOSPC) && !strings.Contains(err.Error(), "no space left")) {
			t.Errorf("%s: got %v, want no space left", what, err)
		}
	}
	if entries, err := os.ReadDir(full); err != nil || len(entries) > 0 {
		t.Errorf("the snapshot left %v, %v", entries, err)
	}
	if entries, err := os.ReadDir(d.keeper.Base); err != nil || len(entries) != 1 {
		t.Errorf("there are machines %v, %v, want the one that runs", entries, err)
	}
	conn, err := m.Dial(testContext(t), 52)
	if err != nil {
		t.Fatalf("the machine does not answer: %v", err)
	}
	_ = conn.Close()
	// With room, the same is done.
	if err := os.Remove(ballast.Name()); err != nil {
		t.Fatal(err)
	}
	if n := lifetimes(t, diskOf(created(t, d, again))); n != 1 {
		t.Errorf("%d guests have run on the disk, want 1", n)
	}
}
