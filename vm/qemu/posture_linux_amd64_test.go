package qemu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// T53: QEMU has no privileges, and nothing of the host's but what it was given, also
// after a restore.
func TestPosture(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d, c := testDriver(t, testOptions(t, t.TempDir())), newConfig(t)
	c.DiskMiB = vm.MinDiskMiB
	m, _ := create(t, d, c)
	wantPosture(t, d, c, m)
	restored, _ := restore(t, d, c, save(t, m))
	wantPosture(t, d, c, restored)
}

func wantPosture(t *testing.T, d *Driver, c vm.Config, m vm.Machine) {
	t.Helper()
	pid := m.(*machine).process.cmd.Process.Pid
	proc := fmt.Sprintf("/proc/%d", pid)
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NoNewPrivs:\t1\n", "Seccomp:\t2\n", "CapEff:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapAmb:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			t.Errorf("status: want %q", want)
		}
	}
	if os.Geteuid() == 0 {
		var groups string // only that of /dev/kvm, where it uses that
		if user, err := accelCredential(c.ID, d.accel.settled.Load().Name == AccelKVM); err == nil && len(user.Groups) > 0 {
			groups = fmt.Sprint(user.Groups[0])
		}
		if strings.Contains(string(status), "Uid:\t0\t") || !strings.Contains(string(status), "Groups:\t"+groups+" \n") {
			t.Errorf("it runs as root, or in groups: %s", status)
		}
		if a, b := life.User("one"), life.User("two"); a == b {
			t.Errorf("two machines are both of user %d", a)
		}
	}
	for _, dir := range d.keeper.Cgroups.Dirs(m.ID()) {
		if pids, err := cgroup.PIDs(dir); err != nil || !slices.Contains(pids, pid) {
			t.Errorf("%s: got %v, %v, want %d in it", dir, pids, err, pid)
		}
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	readOnly := []string{c.Image, d.kernel.ImagePath(), d.initramfs}
	own := []string{"/dev/null", kvmDevice, "/memfd:bouvet-ram (deleted)", filepath.Join(d.keeper.Base, m.ID(), diskName)}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil || !strings.HasPrefix(target, "/") {
			continue
		}
		if !slices.Contains(readOnly, target) && !slices.Contains(own, target) {
			t.Errorf("descriptor %s is %s", fd.Name(), target)
		}
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name()))
		if slices.Contains(readOnly, target) && (err != nil || !strings.Contains(string(info), "flags:\t0100000\n") && !strings.Contains(string(info), "flags:\t02100000\n")) {
			t.Errorf("%s is not open read-only: %s, %v", target, info, err)
		}
	}
	// What other machines begin with, too, cannot be written to.
	ram := m.(*machine).files.ram
	seals, err := unix.FcntlInt(ram.Fd(), unix.F_GET_SEALS, 0)
	if shared := m.(*machine).files.unshare != nil; err != nil || (seals&unix.F_SEAL_WRITE != 0) != shared {
		t.Errorf("memory that is shared (%v) has seals %#x, %v", shared, seals, err)
	}
}
