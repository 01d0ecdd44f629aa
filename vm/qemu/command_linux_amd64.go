package qemu

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/vm"
)

// QEMU's descriptors.
const (
	channelFD = 3 + iota
	qmpFD
	consoleFD
	kernelFD
	initramfsFD
	imageFD
	gateFD
)

// portName names the virtio-serial port for the agent.
const portName = "bouvet"

// nameArg is an argument that every QEMU carries on its command line: unique to the
// machine, for its directory is.
func nameArg(dir string) string { return "guest=" + strings.ReplaceAll(dir, ",", ",,") }

// arguments is QEMU's command line without the program.
func arguments(c *vm.Config, k *kernel.Manifest, dir string) []string {
	fd := func(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }
	return []string{
		"-name", nameArg(dir),
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		// The gate: QEMU reads this, which is empty, before it does anything else.
		"-readconfig", fd(gateFD),
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machineType(k),
		"-accel", "tcg,tb-size=64",
		// The fastest under TCG: later models have instructions that are slow there.
		"-cpu", "Nehalem-v1,+rdrand",
		"-m", strconv.Itoa(c.MemoryMiB), "-smp", strconv.Itoa(c.VCPUs),
		"-kernel", fd(kernelFD), "-initrd", fd(initramfsFD), "-append", kernelArgs(c, k),
		"-add-fd", fmt.Sprintf("fd=%d,set=1", imageFD),
		"-blockdev", "driver=raw,node-name=image,read-only=on,file.driver=file,file.filename=/dev/fdset/1,file.locking=off",
		"-device", "virtio-blk-device,drive=image",
		"-chardev", fmt.Sprintf("socket,id=channel,fd=%d", channelFD),
		"-device", "virtio-serial-device,max_ports=2", "-device", "virtserialport,chardev=channel,name=" + portName,
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-mon", "chardev=qmp,mode=control",
	}
}

// machineType is the machine that suits a kernel: one that finds its devices by the
// command line starts sooner without ACPI.
func machineType(k *kernel.Manifest) string {
	if k.Has(kernel.MMIOCmdline) {
		return "microvm,acpi=off"
	}
	return "microvm"
}

// kernelArgs is the guest's kernel command line.
func kernelArgs(c *vm.Config, k *kernel.Manifest) string {
	hostname := c.Hostname
	if hostname == "" {
		hostname = c.ID
	}
	args := []string{
		"console=ttyS0", "quiet", "rdinit=" + bootfiles.AgentPath, "bouvet.hostname=" + hostname,
		// Its time stamp counter is ours, and without a timer it cannot measure it.
		fmt.Sprintf("tsc_early_khz=%d", tscKHz()), "tsc=reliable", "no_timer_check",
		// A machine that panics ends at once.
		"panic=-1", "reboot=t",
		// Emulated processors do not speculate, and are slow at testing themselves.
		"mitigations=off", "cryptomgr.notests",
	}
	if k.Has(kernel.MMIOCmdline) {
		// Without ACPI there is the old timer, which spares measuring the new one. QEMU
		// adds the devices at the end, so the agent's own arguments must not be fenced
		// off: the kernel passes on what it does not know.
		args = append(args, "noapictimer", "pci=off")
	} else {
		args = append(args, "--")
	}
	args = append(args, "-mux", "virtio:"+portName, "-poweroff", "-log-level", "warn")
	if !c.Detached {
		args = append(args, "-host-bound")
	}
	return strings.Join(args, " ")
}
