package agent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxEntropySeed bounds what of a seed is used, in bytes. The kernel's pool holds
// no more than 32.
const maxEntropySeed = 4 << 10

// An entropyPool is the kernel's.
type entropyPool interface {
	// credit adds bytes and counts them as entropy.
	credit(seed []byte) error
	// reseed lets the generator use what was added at once.
	reseed() error
	// write adds bytes without counting them.
	write(seed []byte) error
}

// addEntropy gives a host's seed to the guest's kernel (checklist J3). A guest
// that was restored from a snapshot has the same pool as its siblings, so the
// seed has to count and to be used before the command begins.
func addEntropy(seed []byte) error {
	dev, err := openRandom("/dev/urandom")
	if err != nil {
		return err
	}
	return errors.Join(seedPool(dev, seed), dev.f.Close())
}

func seedPool(pool entropyPool, seed []byte) error {
	seed = seed[:min(len(seed), maxEntropySeed)]
	if err := pool.credit(seed); err != nil {
		// Without privilege, and in kernels that have no pool of their own (gVisor),
		// mixing it in is all that can be done.
		if werr := pool.write(seed); werr != nil {
			return fmt.Errorf("cannot add entropy: %w", errors.Join(err, werr))
		}
		return nil
	}
	// ENODATA: the generator was not seeded at all so far, and now is.
	if err := pool.reseed(); err != nil && !errors.Is(err, unix.ENODATA) {
		return fmt.Errorf("cannot reseed: %w", err)
	}
	return nil
}

// A randomDevice is /dev/urandom.
type randomDevice struct{ f *os.File }

func openRandom(path string) (*randomDevice, error) {
	// A guest may have put anything in its place; a fifo must not hold us up.
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		return nil, errors.Join(&fs.PathError{Op: "open", Path: path, Err: unix.ENODEV}, f.Close())
	}
	return &randomDevice{f}, nil
}

// poolInfoHeader is the length of struct rand_pool_info before its bytes: two C
// ints, the number of bits to credit and the number of bytes.
const poolInfoHeader = 8

func (d *randomDevice) credit(seed []byte) error {
	info := make([]byte, poolInfoHeader, poolInfoHeader+len(seed))
	binary.NativeEndian.PutUint32(info, uint32(8*len(seed)))   //nolint:gosec // at most maxEntropySeed.
	binary.NativeEndian.PutUint32(info[4:], uint32(len(seed))) //nolint:gosec // at most maxEntropySeed.
	info = append(info, seed...)
	return d.ioctl(unix.RNDADDENTROPY, unsafe.Pointer(&info[0])) //nolint:gosec // the kernel takes an address; x/sys has no call for this one.
}

func (d *randomDevice) reseed() error { return d.ioctl(unix.RNDRESEEDCRNG, nil) }

func (d *randomDevice) write(seed []byte) error {
	_, err := d.f.Write(seed)
	return err
}

func (d *randomDevice) ioctl(request uintptr, arg unsafe.Pointer) error {
	rc, err := d.f.SyscallConn()
	if err != nil {
		return err
	}
	var errno unix.Errno
	err = rc.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(arg))
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}
