package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vsock"
)

// What the host puts into the first file system of a machine's own kernel.
const (
	// initModules holds kernel modules, to be loaded in the order of their names.
	initModules = "/.modules"
	// initAgent holds the agent.
	initAgent = "/.bouvet"
)

// What the host says on the kernel's command line, in words with a value that the
// kernel does not know, is in the environment of the first process.
const (
	// hostnameEnv is the host name.
	hostnameEnv = "BOUVET_HOSTNAME"
	// diskEnv is not empty if the writable layer is on a disk.
	diskEnv = "BOUVET_DISK"
)

// disks are where the image and, on a disk, the writable layer may be: the image is on
// the one that cannot be written to.
var disks = []string{"/dev/vda", "/dev/vdb"}

const (
	// deviceTimeout bounds the wait for a device that the kernel is to find.
	deviceTimeout = 30 * time.Second
	devicePoll    = time.Millisecond
)

// enterRoot puts the root file system together, a writable layer in memory or on a
// disk over the image, and makes it the root of this process.
func enterRoot() error {
	for _, dir := range []string{"/proc", "/sys", "/dev", "/.lower", "/.upper", "/.root"} {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // for everybody.
			return err
		}
	}
	if err := unix.Mount("devtmpfs", "/dev", "devtmpfs", unix.MS_NOSUID, "mode=0755"); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("cannot mount /dev: %w", err)
	}
	if err := loadModules(); err != nil {
		return err
	}
	onDisk := os.Getenv(diskEnv) != ""
	_ = os.Unsetenv(diskEnv)
	image, upper, err := findDisks(onDisk)
	if err != nil {
		return err
	}
	if err := unix.Mount(image, "/.lower", "erofs", unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("cannot mount the image: %w", err)
	}
	if onDisk {
		// Nothing of it outlives the machine, so it need not be in order after a crash.
		err = unix.Mount(upper, "/.upper", "ext4", unix.MS_NOATIME, "nobarrier,errors=continue")
	} else {
		err = unix.Mount("tmpfs", "/.upper", "tmpfs", 0, "mode=0700")
	}
	if err != nil {
		return fmt.Errorf("cannot mount the writable layer: %w", err)
	}
	for _, dir := range []string{"/.upper/upper", "/.upper/work"} {
		if err := os.Mkdir(dir, 0o755); err != nil { //nolint:gosec // upper is the root directory.
			return err
		}
	}
	if err := unix.Mount("overlay", "/.root", "overlay", 0, "lowerdir=/.lower,upperdir=/.upper/upper,workdir=/.upper/work"); err != nil {
		return fmt.Errorf("cannot mount the root: %w", err)
	}
	return switchRoot("/.root")
}

// findDisks returns the device that holds the image and the one for the writable
// layer, if there is one.
func findDisks(withUpper bool) (image, upper string, err error) {
	var last error
	err = await(context.Background(), func() bool {
		image, upper = "", ""
		for _, path := range disks {
			readOnly, err := isReadOnly(path)
			switch {
			case err != nil:
				last = err
			case readOnly:
				image = path
			default:
				upper = path
			}
		}
		return image != "" && (upper != "" || !withUpper)
	})
	if err != nil {
		return "", "", fmt.Errorf("cannot find the machine's disks: %w: %w", err, last)
	}
	return image, upper, nil
}

func isReadOnly(device string) (bool, error) {
	f, err := os.Open(device)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	n, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKROGET)
	return n != 0, err
}

// switchRoot makes dir the root. The agent stays in reach there, read-only: what
// the first file system holds in memory would be there twice otherwise.
func switchRoot(dir string) error {
	agent := filepath.Join(dir, initAgent)
	if err := os.MkdirAll(agent, 0o755); err != nil { //nolint:gosec // for everybody.
		return err
	}
	if err := unix.Mount(initAgent, agent, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot keep the agent: %w", err)
	}
	if err := unix.Mount("", agent, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("cannot keep the agent: %w", err)
	}
	if err := unix.Unmount("/dev", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot leave /dev: %w", err)
	}
	if err := os.Chdir(dir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("cannot enter the root: %w", err)
	}
	return os.Chdir("/")
}

// loadModules loads the modules of the first file system and removes them from it,
// for they are in memory there.
func loadModules() error {
	entries, err := os.ReadDir(initModules) // sorted
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := loadModule(filepath.Join(initModules, e.Name())); err != nil {
			return fmt.Errorf("cannot load module %s: %w", e.Name(), err)
		}
	}
	return os.RemoveAll(initModules)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) {
		return nil // built in
	}
	return err
}

// setHostname takes the host name that the host gave.
func setHostname() error {
	name := os.Getenv(hostnameEnv)
	_ = os.Unsetenv(hostnameEnv)
	if name == "" {
		return nil
	}
	return unix.Sethostname([]byte(name))
}

// virtioPorts has a directory for each virtio-serial port.
const virtioPorts = "/sys/class/virtio-ports"

// openPort opens the virtio-serial port of that name once the host is there: a
// port without its host is at its end for a reader.
func openPort(ctx context.Context, name string) (vsock.Channel, error) {
	var path string
	err := await(ctx, func() bool {
		ports, _ := os.ReadDir(virtioPorts)
		for _, p := range ports {
			if have, err := os.ReadFile(filepath.Join(virtioPorts, p.Name(), "name")); err == nil && strings.TrimSpace(string(have)) == name {
				path = "/dev/" + p.Name()
				return unix.Access(path, unix.F_OK) == nil
			}
		}
		return false
	})
	if err != nil {
		return nil, fmt.Errorf("cannot find virtio port %q: %w", name, err)
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open channel %s: %w", path, err)
	}
	err = await(ctx, func() bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}} //nolint:gosec // a descriptor fits.
		_, err := unix.Poll(fds, 0)
		return err == nil && fds[0].Revents&unix.POLLHUP == 0
	})
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("cannot use virtio port %q, whose host is away: %w", name, err)
	}
	port, err := vsock.OpenPort(fd, path)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return port, nil
}

// await asks cond until it is true, for as long as a device may take to come.
func await(ctx context.Context, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, deviceTimeout)
	defer cancel()
	tick := time.NewTicker(devicePoll)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
