package qemu

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

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func testConfig(t testing.TB) vm.Config {
	t.Helper()
	return vm.Config{ID: fmt.Sprintf("test-%d", time.Now().UnixNano()), Image: imagetest.Default(t), MemoryMiB: 128, VCPUs: 1}
}

// script makes a program that is started instead of QEMU.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// Another user has to reach it.
	for dir := filepath.Dir(path); dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// T06, T31: what does not start is told with its reason, and leaves nothing.
func TestDoesNotStart(t *testing.T) {
	good := testOptions(t, t.TempDir())
	if err := os.Mkdir(filepath.Join(good.StateDir, "machines"), 0o700); err != nil {
		t.Fatal(err)
	}
	kernels := t.TempDir()
	junk := good.Kernel
	junk.Dir = kernels
	if err := os.WriteFile(filepath.Join(kernels, "vmlinux"), []byte(strings.Repeat("junk", 4096)), 0o644); err != nil {
		t.Fatal(err)
	}
	absent := good.Kernel
	absent.Dir = filepath.Join(kernels, "absent")
	for _, tt := range []struct {
		name  string
		spoil func(*Driver, *vm.Config)
		limit time.Duration
		want  string
	}{
		{"QEMU refuses", func(d *Driver, _ *vm.Config) { d.program = script(t, "echo cannot do that >&2; exit 1") }, time.Minute, "cannot do that"},
		{"QEMU ends at once", func(d *Driver, _ *vm.Config) { d.program = "/bin/false" }, time.Minute, "QEMU did not start"},
		{"no QEMU", func(d *Driver, _ *vm.Config) { d.program = "/no/such/program" }, time.Minute, "cannot start QEMU"},
		{"QEMU is silent", func(d *Driver, _ *vm.Config) { d.program = script(t, "exec sleep 4711") }, 300 * time.Millisecond, "deadline"},
		{"no kernel", func(d *Driver, _ *vm.Config) { d.kernel = absent }, time.Minute, "bouvet kernel fetch"},
		{"no such kernel", func(d *Driver, _ *vm.Config) { d.kernel = junk }, time.Minute, "QEMU did not start"},
		{"image is a directory", func(_ *Driver, c *vm.Config) { c.Image = t.TempDir() }, time.Minute, "not a regular file"},
		{"little memory", func(_ *Driver, c *vm.Config) { c.MemoryMiB = MinMemoryMiB - 1 }, time.Minute, "at least"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}, Dirs: []string{filepath.Join(good.StateDir, "machines")}})
			d, c := testDriver(t, good), testConfig(t)
			tt.spoil(d, &c)
			ctx, cancel := context.WithTimeout(testContext(t), tt.limit)
			defer cancel()
			m, err := d.Create(ctx, c)
			if err == nil {
				_ = m.Destroy(testContext(t), 0)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if entries, _ := os.ReadDir(d.keeper.Base); len(entries) > 0 {
				t.Errorf("left %v", entries)
			}
		})
	}
	o := good
	o.Program = "/no/such/program"
	if _, err := New(o); !errors.Is(err, vm.ErrUnsupported) || !strings.Contains(err.Error(), Package) {
		t.Errorf("New without QEMU: got %v, want the package that it is in", err)
	}
}

// A kernel that does not find our agent panics, and the machine ends and says so.
func TestKernelPanics(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d := testDriver(t, testOptions(t, t.TempDir()))
	if err := os.Truncate(d.initramfs, 0); err != nil {
		t.Fatal(err)
	}
	m, err := d.Create(testContext(t), testConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	}()
	select {
	case <-m.Done():
	case <-testContext(t).Done():
		t.Fatal("the machine is still there")
	}
	if err := m.Err(); !errors.Is(err, vm.ErrGone) || !strings.Contains(err.Error(), "Kernel panic") {
		t.Errorf("got %v, want the panic", err)
	}
}

// Section 7 of the threats: QEMU has no privileges, and nothing of the host's but
// what it was given.
func TestPosture(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d := testDriver(t, testOptions(t, t.TempDir()))
	c := testConfig(t)
	m, err := d.Create(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	}()
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
	for _, dir := range d.keeper.Cgroups.Dirs(c.ID) {
		if pids, err := cgroup.PIDs(dir); err != nil || !slices.Contains(pids, pid) {
			t.Errorf("%s: got %v, %v, want %d in it", dir, pids, err, pid)
		}
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil || !strings.HasPrefix(target, "/") {
			continue
		}
		known := []string{"/dev/null", kvmDevice, c.Image, d.kernel.ImagePath(), d.initramfs}
		if !slices.Contains(known, target) {
			t.Errorf("descriptor %s is %s", fd.Name(), target)
		}
		info, err := os.ReadFile(filepath.Join(proc, "fdinfo", fd.Name()))
		if !strings.HasPrefix(target, "/dev/") && (err != nil || !strings.Contains(string(info), "flags:\t0100000\n") && !strings.Contains(string(info), "flags:\t02100000\n")) {
			t.Errorf("%s is not open read-only: %s, %v", target, info, err)
		}
	}
}
