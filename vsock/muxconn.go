package vsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// muxConn is one stream of a mux, as a net.Conn. Beyond what a yamux stream does,
// its Close unblocks its own readers and writers, and a moved deadline reaches all
// who wait.
type muxConn struct {
	stream *yamux.Stream
	link   *muxLink

	mu     sync.Mutex // orders Close and deadlines
	closed chan struct{}

	readBy, writeBy  *deadline
	reading, writing chan struct{} // held by the one who does

	hangup <-chan struct{} // closed when the peer has closed the stream
}

func newMuxConn(stream *yamux.Stream, link *muxLink) *muxConn {
	return &muxConn{
		stream: stream, link: link, closed: make(chan struct{}),
		readBy: newDeadline(), writeBy: newDeadline(),
		reading: make(chan struct{}, 1), writing: make(chan struct{}, 1),
		hangup: link.guard.expectHangup(stream.StreamID()),
	}
}

// enter takes turn unless the conn is closed or the deadline has passed.
func (c *muxConn) enter(turn chan struct{}, d *deadline) error {
	if isClosed(c.closed) {
		return net.ErrClosed
	}
	passed := d.wait()
	if isClosed(passed) {
		return os.ErrDeadlineExceeded
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-c.closed:
		return net.ErrClosed
	case <-passed:
		return os.ErrDeadlineExceeded
	}
}

// Read implements net.Conn.
func (c *muxConn) Read(b []byte) (int, error) {
	if err := c.enter(c.reading, c.readBy); err != nil {
		return 0, err
	}
	defer c.leave()
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.stream.Read(b)
	if err != nil && isClosed(c.closed) {
		return n, net.ErrClosed
	}
	if n > 0 {
		// The bytes are good; what kept the window from being reported will show.
		return n, nil
	}
	return n, muxError(err)
}

// Write implements net.Conn. What it counts as written is on its way to the
// channel, or waits in a short queue for it.
func (c *muxConn) Write(b []byte) (int, error) {
	if err := c.enter(c.writing, c.writeBy); err != nil {
		return 0, err
	}
	defer func() { <-c.writing }()
	total := 0
	for total < len(b) {
		if err := c.link.queue.await(c.closed, c.writeBy.wait()); err != nil {
			return total, err
		}
		n, err := c.stream.Write(b[total:min(len(b), total+maxMuxData)])
		total += n
		if err != nil && isClosed(c.closed) {
			return total, net.ErrClosed
		}
		if err != nil {
			return total, muxError(err)
		}
	}
	return total, nil
}

// Close implements net.Conn. It does not wait for the channel: the peer learns of
// it as soon as the channel has room.
func (c *muxConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closed) {
		return nil
	}
	close(c.closed)
	c.link.guard.mute(c.stream.StreamID())
	c.link.guard.forgetHangup(c.stream.StreamID())
	_ = c.stream.SetDeadline(time.Unix(1, 0))
	_ = c.stream.Close()
	c.drop()
	return nil
}

// leave ends a reader's turn. One that Close met drops the rest in its stead.
func (c *muxConn) leave() {
	<-c.reading
	if isClosed(c.closed) {
		c.drop()
	}
}

// drop gives up what has arrived and nobody will read. The session remembers the
// stream until the peer closes it, too, and would hold on to a whole window for
// each (threat T09). A reader under way does that when it leaves: two that read one
// yamux stream can block each other for good, for they take its locks in either order.
func (c *muxConn) drop() {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	default:
		return
	}
	// A yamux stream looks for bytes before it looks at the clock, so this takes
	// what is there and does not wait for more; the guard drops that.
	var b [16 << 10]byte
	for {
		if _, err := c.stream.Read(b[:]); err != nil {
			break
		}
	}
	c.stream.Shrink()
}

// LocalAddr implements net.Conn.
func (c *muxConn) LocalAddr() net.Addr { return muxAddr{} }

// RemoteAddr implements net.Conn.
func (c *muxConn) RemoteAddr() net.Addr { return muxAddr{} }

// SetDeadline implements net.Conn.
func (c *muxConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *muxConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closed) {
		return net.ErrClosed
	}
	c.readBy.set(t)
	return c.stream.SetReadDeadline(t)
}

// SetWriteDeadline implements net.Conn.
func (c *muxConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closed) {
		return net.ErrClosed
	}
	c.writeBy.set(t)
	return c.stream.SetWriteDeadline(t)
}

type muxAddr struct{}

func (muxAddr) Network() string { return "mux" }
func (muxAddr) String() string  { return "mux" }

// muxError turns yamux's errors into those of package net, so that callers need
// to know only these.
func muxError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, yamux.ErrTimeout), errors.Is(err, yamux.ErrConnectionWriteTimeout):
		return os.ErrDeadlineExceeded
	case errors.Is(err, yamux.ErrSessionShutdown), errors.Is(err, yamux.ErrStreamClosed),
		errors.Is(err, yamux.ErrConnectionReset), errors.Is(err, yamux.ErrRemoteGoAway):
		return fmt.Errorf("%w: %w", net.ErrClosed, err)
	default:
		return err
	}
}
