// Package qemu is the driver for QEMU's microvm machine: each machine is a process
// of the distribution's qemu-system-x86_64 with a guest kernel of its own.
//
// The root file system is an EROFS image on a read-only virtio disk, under a
// writable layer in the guest's memory or on a disk of its own. The agent is the
// first process, from an initramfs. The only ways in and out are a virtio-serial
// port, which carries a mux, and the console, which is only listened to. QEMU runs
// without privileges, by a user of its own where this process is root, behind its own
// seccomp filter, and opens no file by a name: all it needs is handed to it.
package qemu

import (
	"log/slog"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

// Name is the driver's name.
const Name = "qemu"

// DefaultCgroupParent is the cgroup under which machines are put.
const DefaultCgroupParent = cgroup.DefaultParent

// Program is the program that the driver runs, to be found in $PATH.
const Program = "qemu-system-x86_64"

// Package is the Debian package that Program is in.
const Package = "qemu-system-x86"

// MinMemoryMiB is the least memory a machine may have here: a distribution's kernel
// and the agent must fit.
const MinMemoryMiB = 96

// Options configures a Driver.
type Options struct {
	// StateDir is where machines are recorded, under machines/, with their disks, and
	// what all of them are made of is kept. It must belong to the user and not be
	// writable for others. Required.
	StateDir string
	// Agent is the guest's agent, a static program for Linux. Required.
	Agent []byte
	// Kernel is the guest's kernel. Required.
	Kernel kernel.Kernel
	// Program is the path of QEMU; empty means the one in $PATH.
	Program string
	// Accel is AccelAuto, AccelKVM or AccelTCG; empty means AccelAuto.
	Accel string
	// CgroupParent is the cgroup that holds the machines' cgroups, as for gVisor;
	// empty means DefaultCgroupParent.
	CgroupParent string
	// Log receives events that belong to no machine; nil means none.
	Log *slog.Logger
}
