package vsock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/tsc"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/wire"
)

// guestCID is the machine's context ID.
const guestCID = 3

// backEndVersion is the one that scripts/need-vhost-device-vsock.sh builds.
const backEndVersion = "0.3.0"

// backEnd finds the program that serves the machine's vsock device.
func backEnd(t *testing.T) string {
	t.Helper()
	root := os.Getenv("BOUVET_CACHE_DIR")
	if root == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Skipf("%v: set BOUVET_CACHE_DIR and run `scripts/need-vhost-device-vsock.sh`", err)
		}
		root = filepath.Join(cache, "bouvet")
	}
	path := filepath.Join(root, "vhost-device-vsock-"+backEndVersion, "bin", "vhost-device-vsock")
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%v: run `scripts/need-vhost-device-vsock.sh`, which needs cargo and its registry", err)
	}
	return path
}

func guestKernel(t *testing.T) kernel.Kernel {
	t.Helper()
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
		t.Skipf("%v: run `make kernel`", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	modules := fmt.Sprint(k.Manifest.Modules)
	if !k.Manifest.Has(kernel.Vsock) && !strings.Contains(modules, "vmw_vsock_virtio_transport") {
		t.Skipf("kernel %s has no vsock: run `bouvet kernel fetch`, which gets one that has", k.Manifest.Release)
	}
	return k
}

// boot starts a machine whose first process is the agent, which listens on AF_VSOCK,
// and returns the path of its hybrid socket. What it says at its end is logged if the
// test fails. Its vsock must not need shared memory of ours: it is QEMU's and the back
// end's.
func boot(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Skipf("%v: run `make kernel`", err)
	}
	served, k, image := backEnd(t), guestKernel(t), imagetest.Default(t)
	agent, err := guest.Resolve()
	if err != nil {
		t.Skipf("%v: run `make build`", err)
	}
	dir := t.TempDir()
	initramfs, err := bootfiles.Initramfs(filepath.Join(dir, "initramfs"), agent.Binary, &k)
	if err != nil {
		t.Fatal(err)
	}
	hybrid := filepath.Join(dir, "v.sock")
	control := serve(t, served, filepath.Join(dir, "control.sock"), hybrid)

	machine, args := "microvm", "--"
	if k.Manifest.Has(kernel.MMIOCmdline) {
		machine, args = "microvm,acpi=off", "noapictimer"
	}
	const controlFD = 3
	console := start(t, []*os.File{control}, program,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machine+",memory-backend=ram", "-accel", "tcg,tb-size=64", "-cpu", "Nehalem-v1,+rdrand",
		// The back end reads and writes the guest's memory.
		"-m", "256", "-object", "memory-backend-memfd,id=ram,size=256M,share=on",
		"-kernel", k.ImagePath(), "-initrd", initramfs,
		"-append", strings.Join([]string{
			"console=ttyS0", "quiet", "rdinit=" + bootfiles.AgentPath, "BOUVET_HOSTNAME=vsock",
			fmt.Sprintf("tsc_early_khz=%d", tsc.KHz()), "tsc=reliable", "no_timer_check",
			"panic=-1", "reboot=t", "mitigations=off", "cryptomgr.notests", args, "-poweroff", "-log-level", "info",
		}, " "),
		"-blockdev", "driver=raw,node-name=image,read-only=on,file.driver=file,file.filename="+strings.ReplaceAll(image, ",", ",,"),
		"-device", "virtio-blk-device,drive=image",
		"-chardev", fmt.Sprintf("socket,id=vsock,fd=%d", controlFD), "-device", "vhost-user-vsock-device,chardev=vsock")
	// The back end (0.3.0) can lose for good what comes while the guest's driver readies
	// the device, and then answers nobody: one machine in ten where the host is busy.
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	err = wait.Until(ctx, func() (bool, error) {
		return strings.Contains(console.String(), fmt.Sprintf("network=vsock port=%d", wire.PortExec)), nil
	})
	if err != nil {
		t.Fatalf("the agent does not listen: %v", err)
	}
	return hybrid
}

// serve starts the back end and returns a connection to it, for QEMU.
func serve(t *testing.T, program, control, hybrid string) *os.File {
	t.Helper()
	start(t, nil, program, "--guest-cid", fmt.Sprint(guestCID), "--socket", control, "--uds-path", hybrid)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var conn net.Conn
	err := wait.Until(ctx, func() (bool, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "unix", control)
		conn = c
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("vhost-device-vsock does not listen: %v", err)
	}
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// start starts a program that ends with t, and returns the end of what it says.
func start(t *testing.T, files []*os.File, program string, args ...string) *life.Tail {
	t.Helper()
	said := life.NewTail(8 << 10)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = said, said, files
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
	if err := life.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(program), said)
		}
	})
	return said
}
