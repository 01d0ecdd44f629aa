// Package firecracker is the driver for Firecracker: each machine is a process of
// it in a jail of its own, with a guest kernel of its own under KVM.
//
// The jail is made by Firecracker's jailer: an empty root directory, a user for each
// machine, its own mount, network and process namespaces, with limits that we set
// before anything runs in it. The root file system is an EROFS image on a read-only
// disk, under a writable layer in the guest's memory or on a disk of its own. The agent
// is the first process, from an initramfs, and listens on vsock. The only other ways
// out are the serial console, of which the end is kept, and Firecracker's messages.
//
// Machines need root, KVM, and a release of Firecracker that Check accepts.
package firecracker

import (
	"log/slog"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

// Name is the driver's name.
const Name = "firecracker"

// DefaultCgroupParent is the cgroup under which machines are put.
const DefaultCgroupParent = cgroup.DefaultParent

// Program and JailerProgram are the programs that the driver runs, to be found in
// $PATH. They must be of one release.
const (
	Program       = "firecracker"
	JailerProgram = "jailer"
)

// Limits of a machine besides those of package vm.
const (
	// MinMemoryMiB is the least memory a machine may have here: a distribution's
	// kernel and the agent must fit.
	MinMemoryMiB = 96
	// MaxVCPUs is Firecracker's own (MachineConfiguration.vcpu_count).
	MaxVCPUs = 32
)

// Options configures a Driver.
type Options struct {
	// StateDir is where machines are recorded, under machines/, with their disks. It must
	// belong to root, as must every directory above it, and not be writable for others.
	// Required.
	StateDir string
	// Agent is the guest's agent, a static program for Linux. Required.
	Agent []byte
	// Kernel is the guest's kernel, with vsock. Required.
	Kernel kernel.Kernel
	// Program and Jailer are the paths of Firecracker and of its jailer; empty means
	// those in $PATH.
	Program, Jailer string
	// Exe is the program that becomes a machine's warden, which calls Dispatch first
	// of all; the running one when empty.
	Exe string
	// CgroupParent is the cgroup that holds the machines' cgroups, as for gVisor;
	// empty means DefaultCgroupParent.
	CgroupParent string
	// Log receives events that belong to no machine; nil means none.
	Log *slog.Logger
}
