package vsock_test

import (
	"os"

	"golang.org/x/sys/unix"
)

// dupNonblocking opens another description of a terminal's descriptor that the
// runtime can poll.
func dupNonblocking(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
