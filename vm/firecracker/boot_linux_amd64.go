package firecracker

import (
	"context"
	"net/http"
	"strings"

	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/vm"
)

// guestCID is every guest's address: Firecracker's vsock does not leave its process,
// so they never meet.
const guestCID = 3

// diskFlag tells the agent that its writable layer is on a disk. What the kernel does
// not know, and has a value, it puts into the environment of its first process.
const diskFlag = "BOUVET_DISK=1"

// Bounds of what a guest may have the host do, per second, in bytes.
const (
	entropyRate = 64 << 10
	consoleRate = 128 << 10
)

// A request is one thing that Firecracker is told.
type request struct {
	path string
	body any
}

// serial is the request for the console, which is not part of a snapshot.
func (d *Driver) serial() request {
	s := &serialDevice{Path: "/" + jailConsole}
	if d.version.limitsSerial() {
		s.Limiter = &tokenBucket{Size: consoleRate, RefillMS: 1000}
	}
	return request{pathSerial, s}
}

// devices are the requests that describe machine c before its start.
func (d *Driver) devices(c *vm.Config) []request {
	all := []request{
		{pathMachineConfig, &machineConfig{VCPUs: c.VCPUs, MemoryMiB: c.MemoryMiB}},
		{pathBootSource, &bootSource{Kernel: "/" + jailKernel, Initramfs: "/" + jailInitramfs, Args: kernelArgs(c)}},
		drives(jailImage, true),
		{pathVsock, &vsockDevice{CID: guestCID, Path: "/" + jailVsock}},
		{pathEntropy, &entropyDevice{rateLimiter{tokenBucket{Size: entropyRate, RefillMS: 1000}}}},
		d.serial(),
	}
	if c.DiskMiB > 0 {
		all = append(all, drives(jailDisk, false))
	}
	return all
}

// drives is the request for the drive that is the file of that name.
//
// Firecracker writes as it is told to (Sync), and never has the host flush what it
// wrote (Unsafe): nothing of a machine outlives a crash of its host, a snapshot copies
// the file as the host has it in its caches, and a guest that could have the host wait
// for its disks would do so at the cost of its neighbours.
func drives(name string, readOnly bool) request {
	return request{pathDrives + name, &drive{ID: name, Path: "/" + name, ReadOnly: readOnly, Cache: cacheUnsafe, Engine: engineSync}}
}

// boot starts a guest from its kernel.
func (d *Driver) boot(ctx context.Context, m *machine) error {
	for _, r := range d.devices(&m.config) {
		if err := m.api.put(ctx, r.path, r.body); err != nil {
			return err
		}
	}
	return m.api.call(ctx, startTimeout, http.MethodPut, pathActions, &action{actionStart}, nil)
}

// kernelArgs is the guest's kernel command line. The kernel passes on to the agent
// what it does not know.
func kernelArgs(c *vm.Config) string {
	hostname := c.Hostname
	if hostname == "" {
		hostname = c.ID
	}
	args := []string{
		"console=ttyS0", "quiet", "rdinit=" + bootfiles.AgentPath, "BOUVET_HOSTNAME=" + hostname,
		// A machine that panics ends at once, as does one whose agent has ended. There is
		// no other way to switch it off than the keyboard's reset line.
		"panic=-1", "reboot=k",
		// There are neither.
		"pci=off", "i8042.noaux", "i8042.nomux", "i8042.dumbkbd",
		"cryptomgr.notests",
	}
	if c.DiskMiB > 0 {
		args = append(args, diskFlag)
	}
	return strings.Join(append(args, "-log-level", "warn"), " ")
}
