package vsock

import (
	"net"

	"golang.org/x/sys/unix"
)

// AwaitHangup is for a stream whose reads have ended: it tells a peer that only
// finished sending from one that is gone. It blocks until the peer is gone for
// good or the stream's read deadline strikes or the stream is closed, and
// reports whether the peer is gone.
//
// Only a unix socket can tell the two apart. Every other stream counts as gone at
// once: our host never half-closes a mux stream, and the device models that serve
// AF_VSOCK turn a half-close into a full one, of which the guest's kernel shows no
// POLLHUP.
func AwaitHangup(conn net.Conn) bool {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return true
	}
	rc, err := uc.SyscallConn()
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
