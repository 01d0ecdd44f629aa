package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// A guestMount is a file system that programs expect.
type guestMount struct {
	target, kind, options string
	flags                 uintptr
}

var guestMounts = []guestMount{
	{target: "/proc", kind: "proc", flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
	{target: "/sys", kind: "sysfs", flags: unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV},
	{target: "/dev", kind: "devtmpfs", options: "mode=0755", flags: unix.MS_NOSUID},
	{target: "/dev/pts", kind: "devpts", options: "newinstance,ptmxmode=0666,mode=0620,gid=5", flags: unix.MS_NOSUID | unix.MS_NOEXEC},
	{target: "/dev/shm", kind: "tmpfs", options: "mode=1777", flags: unix.MS_NOSUID | unix.MS_NODEV},
	{target: "/run", kind: "tmpfs", options: "mode=0755", flags: unix.MS_NOSUID | unix.MS_NODEV},
}

// guestEnv is what every program's environment has at least.
var guestEnv = [][2]string{
	{"PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	{"HOME", "/root"},
}

// initGuest does what the first process of a guest has to do. Where /proc is
// there already, as under gVisor, somebody has prepared the file systems.
func initGuest(log *slog.Logger) error {
	_, err := os.Stat(initModules)
	machine := err == nil
	for _, kv := range guestEnv {
		// A kernel's HOME is the root directory.
		if machine || os.Getenv(kv[0]) == "" {
			_ = os.Setenv(kv[0], kv[1])
		}
	}
	if machine {
		if err := enterRoot(); err != nil {
			return fmt.Errorf("cannot start guest: %w", err)
		}
	} else if _, err := os.Stat("/proc/self"); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, m := range guestMounts {
		if err := unix.Mkdir(m.target, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			log.Warn("cannot make mount point", slog.Any("error", err))
			continue
		}
		if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.options); err != nil && !errors.Is(err, unix.EBUSY) {
			log.Warn("cannot mount", slog.String("target", m.target), slog.Any("error", err))
		}
	}
	for target, link := range map[string]string{
		"/proc/self/fd": "/dev/fd", "/proc/self/fd/0": "/dev/stdin", "/proc/self/fd/1": "/dev/stdout", "/proc/self/fd/2": "/dev/stderr",
	} {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, fs.ErrExist) {
			log.Warn("cannot make link", slog.Any("error", err))
		}
	}
	if err := loopbackUp(); err != nil {
		log.Warn("cannot bring loopback up", slog.Any("error", err))
	}
	if machine {
		if err := setHostname(); err != nil {
			log.Warn("cannot set host name", slog.Any("error", err))
		}
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err == nil && req.Uint16()&unix.IFF_UP != 0 {
		return nil
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}

// endMachine switches the machine off, or restarts it, which ends a machine that its
// host does not let restart, and is the only way where there is no ACPI: the kernel only
// halts there otherwise. It is for the kernel of a machine of its own: elsewhere the end
// of process 1 is the end of the sandbox.
func endMachine(restart bool, log *slog.Logger) {
	unix.Sync()
	how := unix.LINUX_REBOOT_CMD_POWER_OFF
	if restart {
		how = unix.LINUX_REBOOT_CMD_RESTART
	}
	if err := unix.Reboot(how); err != nil {
		log.Error("cannot switch off", slog.Any("error", err))
	}
}
