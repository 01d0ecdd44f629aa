package qemu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/tsc"
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
	ramFD
	diskFD
	stateFD
	laneFD
)

// QEMU's sets of descriptors, which name what it opens.
const (
	imageSet = 1 + iota
	diskSet
	// savedSet is for the file that a machine's state is saved to.
	savedSet
)

func fdset(n int) string { return "/dev/fdset/" + strconv.Itoa(n) }

// diskFlag tells the agent that its writable layer is on a disk. What the kernel does
// not know, and has a value, it puts into the environment of its first process.
const diskFlag = "BOUVET_DISK=1"

// emulatedCPU is the fastest model without KVM: later ones have instructions that are
// slow to emulate.
const emulatedCPU = "Nehalem-v1,+rdrand"

// portName names the virtio-serial port for the agent, laneName the one for one stream at
// a time that carries much.
const (
	portName = "bouvet"
	laneName = "bouvet-lane" // with a dot the kernel would keep it for itself
)

// nameArg is an argument that every QEMU carries on its command line: unique to the
// machine, for its directory is.
func nameArg(dir string) string { return "guest=" + strings.ReplaceAll(dir, ",", ",,") }

// common are the arguments of every QEMU of ours. name is an argument of -name.
func common(name, machine string) []string {
	return []string{
		"-name", name,
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none",
		"-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny",
		"-machine", machine,
	}
}

// processor are the arguments that say what runs the guest's instructions.
func processor(accel string) []string {
	if accel == AccelKVM {
		return []string{"-accel", "kvm", "-cpu", "host"}
	}
	return []string{"-accel", "tcg,tb-size=64", "-cpu", emulatedCPU}
}

// arguments is QEMU's command line without the program. A machine that is to be
// restored maps its memory copy-on-write and has no use for a kernel.
func arguments(c *vm.Config, k *kernel.Manifest, dir, accel string, restore bool) []string {
	fd := func(n int) string { return "/proc/self/fd/" + strconv.Itoa(n) }
	share := "on"
	if restore {
		share = "off"
	}
	args := slices.Concat(common(nameArg(dir), machineType(k)+",memory-backend=ram,suppress-vmdesc=on"), processor(accel), []string{
		// The gate: QEMU reads this, which is empty, before it does anything else.
		"-readconfig", fd(gateFD),
		"-m", strconv.Itoa(c.MemoryMiB), "-smp", strconv.Itoa(c.VCPUs),
		// Saved state says nothing about itself: QEMU's exact version, which the
		// snapshot's manifest tells, knows how to read it.
		"-global", "migration.send-configuration=off",
		"-object", fmt.Sprintf("memory-backend-file,id=ram,size=%dM,mem-path=%s,share=%s", c.MemoryMiB, fd(ramFD), share),
		"-add-fd", fmt.Sprintf("fd=%d,set=%d", imageFD, imageSet),
		"-blockdev", "driver=raw,node-name=image,read-only=on,file.driver=file,file.filename=" + fdset(imageSet) + ",file.locking=off",
		"-device", "virtio-blk-device,drive=image",
		"-chardev", fmt.Sprintf("socket,id=channel,fd=%d", channelFD),
		"-device", "virtio-serial-device,max_ports=3", "-device", "virtserialport,chardev=channel,name=" + portName,
		"-chardev", fmt.Sprintf("socket,id=lane,fd=%d", laneFD), "-device", "virtserialport,chardev=lane,name=" + laneName,
		"-chardev", fmt.Sprintf("socket,id=console,fd=%d", consoleFD), "-serial", "chardev:console",
		"-chardev", fmt.Sprintf("socket,id=qmp,fd=%d", qmpFD), "-mon", "chardev=qmp,mode=control",
	})
	if c.DiskMiB > 0 {
		args = append(args,
			"-add-fd", fmt.Sprintf("fd=%d,set=%d", diskFD, diskSet),
			"-blockdev", "driver=raw,node-name=disk,discard=unmap,file.driver=file,file.filename="+fdset(diskSet)+",file.locking=off,file.discard=unmap",
			// When the host's disk is full, the guest sees that.
			"-device", "virtio-blk-device,drive=disk,werror=report,rerror=report")
	}
	if restore {
		return append(args, "-incoming", "defer")
	}
	return append(args, "-kernel", fd(kernelFD), "-initrd", fd(initramfsFD), "-append", kernelArgs(c, k, accel))
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
func kernelArgs(c *vm.Config, k *kernel.Manifest, accel string) string {
	hostname := c.Hostname
	if hostname == "" {
		hostname = c.ID
	}
	args := []string{
		"console=ttyS0", "quiet", "rdinit=" + bootfiles.AgentPath, "BOUVET_HOSTNAME=" + hostname,
		// A machine that panics ends at once.
		"panic=-1", "reboot=t",
		"cryptomgr.notests",
	}
	if c.DiskMiB > 0 {
		args = append(args, diskFlag)
	}
	emulated := accel == AccelTCG
	if emulated {
		args = append(args,
			// Its time stamp counter is ours, and without a timer it cannot measure it. (KVM
			// has a clock for its guests.)
			fmt.Sprintf("tsc_early_khz=%d", tsc.KHz()), "tsc=reliable", "no_timer_check",
			// Emulated processors do not speculate.
			"mitigations=off")
	}
	if k.Has(kernel.MMIOCmdline) {
		// QEMU adds the devices at the end, so the agent's own arguments must not be
		// fenced off: the kernel passes on what it does not know.
		args = append(args, "pci=off")
		if emulated && c.VCPUs == 1 {
			// Without ACPI there is the old timer, which spares measuring the APIC's. More
			// than one processor cannot share it: they would never sleep, nor wait for less
			// than 4 ms.
			args = append(args, "noapictimer")
		}
	} else {
		args = append(args, "--")
	}
	end := "-poweroff"
	if k.Has(kernel.MMIOCmdline) {
		end = "-restart" // without ACPI it cannot be switched off
	}
	args = append(args, "-mux", "virtio:"+portName, "-lane", "virtio:"+laneName, end, "-log-level", "warn")
	if !c.Detached {
		args = append(args, "-host-bound")
	}
	return strings.Join(args, " ")
}
