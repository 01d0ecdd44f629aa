package vsock

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// AwaitHangup is for a stream whose reads have ended: it tells a peer that only
// finished sending from one that is gone. It blocks until the peer is gone for
// good or the stream's read deadline strikes or the stream is closed, and
// reports whether the peer is gone.
//
// A stream that can tell itself does so in a method AwaitHangup() bool. Of the
// others only a unix socket can tell the two apart. Every other stream counts as
// gone at once: the device models that serve AF_VSOCK turn a half-close into a full
// one, of which the guest's kernel shows no POLLHUP.
func AwaitHangup(conn net.Conn) bool {
	if c, ok := conn.(interface{ AwaitHangup() bool }); ok {
		return c.AwaitHangup()
	}
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return true
	}
	rc, err := uc.SyscallConn()
	if err != nil {
		return true
	}
	return AwaitHangupFD(rc)
}

// AwaitHangupFD does what AwaitHangup does for a descriptor: that of a socket, or
// of the pipe that the peer reads from. It cannot tell of one that the kernel
// cannot poll, and then counts the peer as there.
func AwaitHangupFD(rc syscall.RawConn) bool {
	gone := false
	// The runtime's poller wakes this for every change of the socket's state.
	err := rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // descriptors are small.
		if _, err := unix.Poll(p, 0); err != nil {
			return false
		}
		gone = p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		return gone
	})
	return gone || err == nil
}
