package bouvet

import (
	"errors"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// quiet reports whether an idle connection is fit for another call: open, and
// nothing to be read from it. What a peer says unasked answers no question of
// ours (threat T19).
func quiet(conn net.Conn) bool {
	if q, ok := conn.(interface{ Quiet() bool }); ok { // a mux stream
		return q.Quiet()
	}
	if sc, ok := conn.(syscall.Conn); ok {
		rc, err := sc.SyscallConn()
		if err != nil {
			return false
		}
		var peekErr error
		err = rc.Read(func(fd uintptr) bool {
			var b [1]byte
			_, _, peekErr = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			return true
		})
		if err != nil {
			return false
		}
		// Only "nothing there yet" is good: no error means a byte, or the end.
		return errors.Is(peekErr, unix.EAGAIN) || errors.Is(peekErr, unix.ENOTSOCK)
	}
	// At least an end of the stream shows.
	if conn.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	var b [1]byte
	n, err := conn.Read(b[:])
	return n == 0 && isTimeout(err) && conn.SetReadDeadline(time.Time{}) == nil
}
