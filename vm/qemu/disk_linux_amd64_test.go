package qemu

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

func sum(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return string(h.Sum(nil))
}

// blocks is the room that a file takes, in bytes.
func blocks(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

// T03, T54: a guest has the room that it was given, and what it fills is its own.
func TestDisk(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d, c := testDriver(t, testOptions(t, t.TempDir())), newConfig(t)
	c.DiskMiB = 32
	image := sum(t, c.Image)
	m, a := create(t, d, c)
	disk := filepath.Join(d.keeper.Base, m.ID(), diskName)
	if n := blocks(t, disk); n > 2<<20 {
		t.Errorf("an empty disk takes %d bytes", n)
	}
	for _, tt := range []struct{ name, script, want string }{
		{"the root is on it", "stat -f -c %T /; df -BM --output=size / | tail -1", "31M"},
		{"a huge file without content", "truncate -s 10T /huge && stat -c %s /huge && rm /huge", "10995116277760"},
		{"fill it", "cat /dev/zero >/full", "No space left"},
		{"goes on", "rm /full && echo ok >/file && sync && cat /file", "ok"},
		{"use up its names", `python3 -c 'import os
os.mkdir("/many")
for i in range(100000): open("/many/%d" % i, "w").close()'; rm -rf /many`, "No space left"},
		{"the image's disk", "for d in /dev/vda /dev/vdb; do blockdev --getro $d; done | sort | tr -d '\\n'", "01"},
		{"write to the image", "for d in /dev/vda /dev/vdb; do [ $(blockdev --getro $d) = 1 ] && blockdev --setrw $d && dd if=/dev/zero of=$d bs=4k count=1 conv=fsync; done", ""},
	} {
		got := sh(t, a, tt.script)
		if !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		t.Logf("%s: %s", tt.name, got)
	}
	if sum(t, c.Image) != image {
		t.Error("the guest has changed the image")
	}
	info, err := os.Stat(disk)
	if err != nil || info.Size() != 32<<20 {
		t.Errorf("the disk: got %v, %v, want 32 MiB", info, err)
	}
	// T56: whatever the guest writes there, it is a disk and nothing else.
	sh(t, a, `for d in /dev/vda /dev/vdb; do [ $(blockdev --getro $d) = 0 ] && printf 'QFI\373\0\0\0\3' | dd of=$d bs=8 count=1 conv=notrunc,fsync; done`)
	head := make([]byte, 4)
	f, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.ReadAt(head, 0)
	if _ = f.Close(); err != nil || string(head) != "QFI\xfb" {
		t.Fatalf("the disk begins with %q, %v", head, err)
	}
	_, a2 := restore(t, d, c, save(t, m))
	if got := sh(t, a2, "cat /file; for d in /dev/vda /dev/vdb; do blockdev --getsize64 $d; done"); !strings.HasPrefix(got, "ok") || !strings.Contains(got, "33554432") {
		t.Errorf("restored: got %q, want the disk as it was", got)
	}
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(disk); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the disk is still there: %v", err)
	}
}

// T03: when the host's disk is full, the guest gets errors, and both live.
func TestHostDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system: run as root")
	}
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	state := t.TempDir()
	if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=64m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v: run with CAP_SYS_ADMIN", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(state, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d, c := testDriver(t, testOptions(t, state)), newConfig(t)
	c.DiskMiB = 256
	m, a := create(t, d, c)
	got := sh(t, a, "dd if=/dev/zero of=/full bs=1M count=80 conv=fsync 2>&1; cat /full 2>&1 | wc -c; dmesg | grep -c 'I/O error'")
	if !strings.Contains(got, "error") {
		t.Errorf("got %q, want an error", got)
	}
	t.Logf("%s", got)
	if err := a.Ping(testContext(t)); err != nil {
		t.Errorf("the guest does not answer: %v", err)
	}
	dir := filepath.Join(state, "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := m.Snapshot(testContext(t), dir); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Snapshot to a full disk: got %v, want ENOSPC", err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
	if err := a.Ping(testContext(t)); err != nil {
		t.Errorf("the guest does not answer: %v", err)
	}
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Error(err)
	}
}
