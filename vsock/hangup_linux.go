package vsock

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// AwaitHangup is for a stream whose reads have ended: it tells a peer that only
// finished sending from one that is gone. It blocks until the peer is gone for
// good or the stream's read deadline strikes or the stream is closed, and
// reports whether the peer is gone. A stream that cannot tell the two apart (a
// mux stream: our host never half-closes one) counts as gone at once.
func AwaitHangup(conn net.Conn) bool {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	// The runtime's poller wakes this for every change of the socket's state.
	err = rc.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // descriptors are small.
		if _, err := unix.Poll(p, 0); err != nil {
			return false
		}
		gone = p[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
		return gone
	})
	return gone || err == nil
}
