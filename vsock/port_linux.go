package vsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A portFile is a device that is waited for by poll(2) where somebody waits, and not by
// the runtime's poller. That is told of every buffer that a virtio-serial port's host
// takes or gives, and each time a thread of the program wakes up to find nothing to do,
// which is most of what a transfer costs an emulated guest. It implements Channel; one
// reader and one writer at a time.
type portFile struct {
	fd   int
	name string

	mu       sync.Mutex
	closed   bool       // guarded by mu
	inUse    int        // readers and writers; guarded by mu
	unused   *sync.Cond // of mu
	deadline [2]time.Time
	wake     [2]int // eventfds, one for the reader and one for the writer
}

// The sides of a portFile.
const (
	readSide = iota
	writeSide
)

// OpenPort takes over the descriptor of a device, which it makes non-blocking.
func OpenPort(fd int, name string) (Channel, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("cannot use %s: %w", name, err)
	}
	p := &portFile{fd: fd, name: name}
	p.unused = sync.NewCond(&p.mu)
	for i := range p.wake {
		wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			if i > 0 {
				_ = unix.Close(p.wake[0])
			}
			return nil, fmt.Errorf("cannot use %s: %w", name, err)
		}
		p.wake[i] = wake
	}
	return p, nil
}

// enter begins a use of the descriptor, which leave ends.
func (p *portFile) enter() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	p.inUse++
	return nil
}

func (p *portFile) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inUse--; p.inUse == 0 {
		p.unused.Broadcast()
	}
}

// Read implements io.Reader.
func (p *portFile) Read(b []byte) (int, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.leave()
	for {
		if err := p.passed(readSide); err != nil {
			return 0, err
		}
		n, err := rawIO(unix.SYS_READ, p.fd, b)
		switch {
		case n > 0 || len(b) == 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return 0, &os.PathError{Op: "read", Path: p.name, Err: err}
		default:
			if err := p.await(readSide, unix.POLLIN); err != nil {
				return 0, err
			}
		}
	}
}

// Write implements io.Writer.
func (p *portFile) Write(b []byte) (total int, err error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.leave()
	for total < len(b) {
		if err := p.passed(writeSide); err != nil {
			return total, err
		}
		n, err := rawIO(unix.SYS_WRITE, p.fd, b[total:])
		total += n
		switch {
		case err == nil, errors.Is(err, unix.EINTR):
		case !errors.Is(err, unix.EAGAIN):
			return total, &os.PathError{Op: "write", Path: p.name, Err: err}
		default:
			if err := p.await(writeSide, unix.POLLOUT); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

// rawIO reads or writes without telling the scheduler. The descriptor does not wait, and
// what a call moves, at most 32 KiB with a virtio-serial port, is soon moved; but on the
// one processor of a small guest the scheduler gives every call's place to another thread
// and takes it back, which takes longer.
func rawIO(call uintptr, fd int, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, _, errno := unix.RawSyscall(call, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b))) //nolint:gosec // as unix.Read does.
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// passed is why a side may not go on: it is closed, or its time is over.
func (p *portFile) passed(side int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch d := p.deadline[side]; {
	case p.closed:
		return net.ErrClosed
	case !d.IsZero() && !time.Now().Before(d):
		return os.ErrDeadlineExceeded
	}
	return nil
}

// await waits for the device, or for a reason to look again.
func (p *portFile) await(side int, events int16) error {
	p.mu.Lock()
	d := p.deadline[side]
	p.mu.Unlock()
	timeout := -1
	if !d.IsZero() {
		// A little late rather than again and again too early.
		timeout = int(min(max(time.Until(d), 0), time.Hour)/time.Millisecond) + 1
	}
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: events}, {Fd: int32(p.wake[side]), Events: unix.POLLIN}} //nolint:gosec // descriptors are small.
	if _, err := unix.Poll(fds, timeout); err != nil && !errors.Is(err, unix.EINTR) {
		return os.NewSyscallError("poll", err)
	}
	if fds[1].Revents != 0 {
		var count [8]byte
		_, _ = unix.Read(p.wake[side], count[:])
	}
	return nil
}

// rouse has a side look again.
func (p *portFile) rouse(side int) {
	one := [8]byte{7: 1}
	_, _ = unix.Write(p.wake[side], one[:]) // any number but 0
}

// Close ends all uses of the device and closes it. It is idempotent.
func (p *portFile) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	p.closed = true
	p.rouse(readSide)
	p.rouse(writeSide)
	for p.inUse > 0 {
		p.unused.Wait()
	}
	_ = unix.Close(p.wake[readSide])
	_ = unix.Close(p.wake[writeSide])
	return os.NewSyscallError("close", unix.Close(p.fd))
}

// SetDeadline is net.Conn's.
func (p *portFile) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}

// SetReadDeadline is net.Conn's.
func (p *portFile) SetReadDeadline(t time.Time) error { return p.set(readSide, t) }

// SetWriteDeadline is net.Conn's.
func (p *portFile) SetWriteDeadline(t time.Time) error { return p.set(writeSide, t) }

func (p *portFile) set(side int, t time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	p.deadline[side] = t
	p.rouse(side)
	return nil
}

// readable reports whether a Read would not wait.
func (p *portFile) readable() bool {
	if p.enter() != nil {
		return false
	}
	defer p.leave()
	fds := []unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small.
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}
