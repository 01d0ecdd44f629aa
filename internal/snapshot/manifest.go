package snapshot

import (
	"fmt"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

// Format is the version of what Write writes.
const Format = 1

// A Manifest says what the files beside it belong to. A machine can be restored only
// where all of it, Created apart, is as it was.
type Manifest struct {
	// Format is the constant of that name.
	Format int `json:"format"`
	// Driver is the name of the driver that saved the machine.
	Driver string `json:"driver"`
	// DriverVersion names what can read the state: QEMU's version and machine type,
	// runsc's build, Firecracker's snapshot format.
	DriverVersion string `json:"driver_version"`
	// CPU is what CPU says of the host, or of the processor that is emulated.
	CPU string `json:"cpu"`
	// Kernel is the digest of the guest's own kernel and what else the machine was
	// booted from, or empty.
	Kernel string `json:"kernel,omitempty"`
	// Image is the digest of the root file system: "sha256:" and hex digits.
	Image string `json:"image"`
	// MemoryMiB, VCPUs and DiskMiB are those of the machine's vm.Config.
	MemoryMiB int `json:"memory_mib"`
	VCPUs     int `json:"vcpus"`
	DiskMiB   int `json:"disk_mib"`
	// Created is when the machine was saved.
	Created time.Time `json:"created"`
	// Details are the driver's own.
	Details map[string]string `json:"details,omitempty"`
	// Files are all files of the snapshot but the manifest.
	Files []File `json:"files"`
}

// A File is one file of a snapshot.
type File struct {
	// Name is the file's name in the directory.
	Name string `json:"name"`
	// Size is its size in bytes, holes included.
	Size int64 `json:"size"`
	// Digest is what digest computes of its content.
	Digest string `json:"digest"`
}

// Of begins the manifest of a machine: what c says. The driver fills in the rest.
func Of(c *vm.Config, driver, driverVersion, cpu string) Manifest {
	return Manifest{
		Driver: driver, DriverVersion: driverVersion, CPU: cpu,
		Image: c.ImageDigest, MemoryMiB: c.MemoryMiB, VCPUs: c.VCPUs, DiskMiB: c.DiskMiB,
	}
}

// Match reports, as an error wrapping vm.ErrBadSnapshot, the first thing in which a
// snapshot differs from here: what its driver would write into the manifest of the
// machine that is to be restored. Details are not compared.
func (m *Manifest) Match(here *Manifest) error {
	for _, f := range []struct {
		what      string
		have, now any
	}{
		{"driver", m.Driver, here.Driver},
		{"driver version", m.DriverVersion, here.DriverVersion},
		{"processor", m.CPU, here.CPU},
		{"guest kernel", m.Kernel, here.Kernel},
		{"image", m.Image, here.Image},
		{"memory in MiB", m.MemoryMiB, here.MemoryMiB},
		{"number of vCPUs", m.VCPUs, here.VCPUs},
		{"disk in MiB", m.DiskMiB, here.DiskMiB},
	} {
		if f.have != f.now {
			return fmt.Errorf("%w: its %s is %.200q, here it is %.200q", vm.ErrBadSnapshot, f.what, fmt.Sprint(f.have), fmt.Sprint(f.now))
		}
	}
	return nil
}
