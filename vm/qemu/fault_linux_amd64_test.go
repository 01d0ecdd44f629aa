package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func testConfig(t testing.TB) vm.Config {
	t.Helper()
	return vm.Config{ID: fmt.Sprintf("test-%d", time.Now().UnixNano()), Image: imagetest.Default(t), MemoryMiB: 128, VCPUs: 1}
}

// script makes a program that is started instead of QEMU.
func script(t testing.TB, text string) string {
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
		{"old QEMU", func(d *Driver, _ *vm.Config) {
			d.program = script(t, `[ "$1" = --version ] && echo "QEMU emulator version 4.2.1 (Debian)" || { echo bad option >&2; exit 1; }`)
		}, time.Minute, "QEMU 4.2 is too old"},
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
