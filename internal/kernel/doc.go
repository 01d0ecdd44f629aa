// Package kernel gets guest kernels and keeps them: the distribution's cloud
// kernel, fetched and verified by apt, with its image uncompressed and the modules
// that a sandbox needs; or a small one of our own configuration, built from the
// distribution's source; or one that somebody else has made.
//
// A kernel is a directory named by the digest of its manifest, which in turn names
// its parts by theirs. It is made whole, under another name, and never changed.
package kernel

import (
	"errors"
	"slices"
	"time"
)

// ErrNone means that the store holds no kernel.
var ErrNone = errors.New("there is no guest kernel")

// Modules are the modules that a guest on QEMU's microvm machine or on Firecracker
// needs besides what Debian's cloud kernel has built in; those that they need come
// with them. Which of them a machine gets is its driver's to say.
var Modules = []string{
	"virtio_mmio", "virtio_blk", "virtio_console", "erofs", "overlay",
	"vmw_vsock_virtio_transport", "virtio_rng",
}

// A Manifest describes a kernel.
type Manifest struct {
	// Format is the version of this layout.
	Format int `json:"format"`
	// Release is what uname -r says in the guest.
	Release string `json:"release"`
	// Package and Version are those of the distribution's package, and Source is
	// the digest of its file.
	Package string `json:"package,omitempty"`
	Version string `json:"version,omitempty"`
	Source  string `json:"source,omitempty"`
	// Image is the uncompressed ELF image with a PVH entry.
	Image Part `json:"image"`
	// Modules are in the order in which they have to be loaded.
	Modules []Part `json:"modules"`
	// Config is the configuration that the kernel was made with (a .config), where
	// it is known.
	Config *Part `json:"config,omitempty"`
	// Features are what a driver may count on, in order; see Feature. They follow
	// from Config: without one there are none.
	Features []Feature `json:"features,omitempty"`
}

// A Feature is something that a kernel can do without a module, and that not all
// can. Drivers choose how to start a machine by it.
type Feature string

// Features.
const (
	// MMIOCmdline: virtio devices are found by the command line, so that a machine
	// can do without ACPI (CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES).
	MMIOCmdline Feature = "mmio-cmdline"
	// Vsock is CONFIG_VIRTIO_VSOCKETS.
	Vsock Feature = "vsock"
	// Ext4 is CONFIG_EXT4_FS, for a writable layer on a disk.
	Ext4 Feature = "ext4"
	// VMGenID: a machine that was restored from a snapshot is told so by its
	// hypervisor, and its random numbers are renewed (CONFIG_VMGENID).
	VMGenID Feature = "vmgenid"
	// NFTables is CONFIG_NF_TABLES.
	NFTables Feature = "nftables"
)

// Has reports whether the kernel is known to have feature f.
func (m *Manifest) Has(f Feature) bool { return slices.Contains(m.Features, f) }

// A Part is a file of a kernel.
type Part struct {
	// Name is the file's path in the kernel's directory.
	Name string `json:"name"`
	// Digest is "sha256:" and the file's checksum in hexadecimal.
	Digest string `json:"digest"`
	// Size is in bytes.
	Size int64 `json:"size"`
}

// A Kernel is one in the store.
type Kernel struct {
	// Digest names it: "sha256:" and the checksum of its manifest.
	Digest string `json:"digest"`
	// Dir is the absolute path of its directory.
	Dir string `json:"dir"`
	// Added is when it came into the store.
	Added time.Time `json:"added"`
	// Size is that of all its parts, in bytes.
	Size     int64    `json:"size"`
	Manifest Manifest `json:"manifest"`
}

// Progress is told what goes on: a step, in words for people, and how far it has
// got: done of about total, which are 0 where that is not known.
type Progress func(step string, done, total int64)

func (p Progress) orNone() Progress {
	if p == nil {
		return func(string, int64, int64) {}
	}
	return p
}
