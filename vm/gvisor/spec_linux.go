package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/bouvet-run/bouvet/vm"
)

// guestNoFile is the guest's limit on open files.
const guestNoFile = 65536

// guestCapabilities are what root has inside the guest. They are capabilities over
// the sentry's own emulation and give nothing on the host; the sentry itself has
// none. Left out are those that gVisor has nothing to apply to.
var guestCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_SETGID", "CAP_SETUID",
	"CAP_SETPCAP", "CAP_LINUX_IMMUTABLE", "CAP_NET_BIND_SERVICE", "CAP_NET_ADMIN", "CAP_IPC_LOCK", "CAP_IPC_OWNER",
	"CAP_SYS_CHROOT", "CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_SYS_NICE", "CAP_SYS_RESOURCE", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD",
	"CAP_LEASE", "CAP_AUDIT_WRITE", "CAP_SETFCAP",
}

// diskBytes is the size of the root's writable layer, and that of /tmp. It is held in
// the guest's memory, and the kernel kills the whole machine over its limit: a full
// disk must come first, with an error that the guest survives.
func diskBytes(memoryMiB int) int64 { return int64(memoryMiB) << 20 / 8 * 7 }

// sized limits a file system in memory. Without a limit gVisor gives it half of the
// host's memory, and tells the guest how much that is.
func sized(bytes int64) string { return "size=" + strconv.FormatInt(bytes, 10) }

// makeSpec is the OCI specification of a machine.
func makeSpec(c *vm.Config, agentImage string) *specs.Spec {
	args := []string{AgentPath, "--mux", "fd:" + strconv.Itoa(channelFD)}
	annotations := map[string]string{
		"dev.gvisor.spec.rootfs.source":  c.Image,
		"dev.gvisor.spec.rootfs.type":    "erofs",
		"dev.gvisor.spec.rootfs.overlay": "memory",
		"dev.gvisor.spec.rootfs.options": sized(diskBytes(c.MemoryMiB)),
		annotationMemory:                 strconv.FormatInt(int64(c.MemoryMiB)<<20, 10),
		annotationCPUs:                   strconv.Itoa(c.VCPUs),
	}
	if !c.Detached {
		args = append(args, "--host-bound")
		annotations[annotationBound] = "1"
	}
	hostname := c.Hostname
	if hostname == "" {
		hostname = c.ID
	}
	return &specs.Spec{
		Version:     specs.Version,
		Hostname:    hostname,
		Annotations: annotations,
		// Empty: the root comes from the annotations.
		Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{
			Args: args,
			Cwd:  "/",
			Env: []string{
				"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
				"HOME=/root", "USER=root", "LANG=C.UTF-8",
			},
			Capabilities: &specs.LinuxCapabilities{
				Bounding: guestCapabilities, Effective: guestCapabilities, Permitted: guestCapabilities,
			},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Soft: guestNoFile, Hard: guestNoFile},
				{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
			},
		},
		// Mounts of the sentry's own kinds need no gofer; a bind mount would.
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "nodev", "mode=1777", sized(int64(c.MemoryMiB) << 20 / 2)}},
			// runsc would mount one itself, without a limit.
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777", sized(diskBytes(c.MemoryMiB))}},
			{Destination: agentMount, Type: "erofs", Source: agentImage, Options: []string{"ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace},
			},
		},
	}
}

// writeBundle makes an OCI bundle in dir.
func writeBundle(dir string, spec *specs.Spec) error {
	if err := os.MkdirAll(filepath.Join(dir, spec.Root.Path), 0o700); err != nil {
		return fmt.Errorf("cannot make bundle: %w", err)
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("cannot encode specification: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "config.json"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("cannot make bundle: %w", err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("cannot write specification: %w", err)
	}
	return nil
}
