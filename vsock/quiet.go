package vsock

import (
	"errors"
	"time"

	"github.com/hashicorp/yamux"
)

// Quiet reports whether the stream is open and there is nothing to be read from
// it. It is for one that lies idle: without deadlines and without a reader. A
// stream that is not quiet is of no further use; a byte may be missing.
func (c *muxConn) Quiet() bool {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	default:
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closed) || c.stream.SetReadDeadline(time.Unix(1, 0)) != nil {
		return false
	}
	// A yamux stream looks for bytes, and for its end, before it looks at the clock.
	var b [1]byte
	n, err := c.stream.Read(b[:])
	return n == 0 && errors.Is(err, yamux.ErrTimeout) && c.stream.SetReadDeadline(time.Time{}) == nil
}
