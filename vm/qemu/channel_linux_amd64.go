package qemu

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A channel is the host's end of a machine's virtio-serial port, whose way to the
// guest can be stopped: QEMU goes on putting what it is sent into the guest's memory
// when the guest's processors stand still, and that memory has to stand still, too.
type channel struct {
	*net.UnixConn
	// reads says that stop stops readers, too. Where somebody always reads that is not
	// needed: soon there is nothing more.
	reads    bool
	turn     chan struct{} // an element while somebody writes, or nobody may
	readTurn chan struct{} // the same of readers, if reads is set
	closed   chan struct{}
	received atomic.Uint64 // bytes

	mu           sync.Mutex
	stops        int       // how many times it was stopped
	stopped      bool      // guarded by mu, as are the deadlines
	deadline     time.Time // of writes, as set by the user
	readDeadline time.Time // the same of reads
	close        sync.Once
}

func newChannel(conn net.Conn) (*channel, error) {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return &channel{UnixConn: c, turn: make(chan struct{}, 1), readTurn: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// Read implements net.Conn.
func (c *channel) Read(p []byte) (int, error) {
	for {
		if c.reads {
			select {
			case c.readTurn <- struct{}{}:
			case <-c.closed:
				return 0, net.ErrClosed
			}
		}
		before, _ := c.stopState()
		n, err := c.UnixConn.Read(p)
		c.received.Add(uint64(n)) //nolint:gosec // not negative.
		if !c.reads {
			return n, err
		}
		<-c.readTurn
		if n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
		if now, stopped := c.stopState(); !stopped && now == before {
			return n, err // it was the user's deadline
		}
	}
}

// Write implements net.Conn. It waits while the way is stopped, whatever its deadline.
func (c *channel) Write(p []byte) (int, error) {
	for done := 0; ; {
		select {
		case c.turn <- struct{}{}:
		case <-c.closed:
			return done, net.ErrClosed
		}
		before, _ := c.stopState()
		n, err := c.UnixConn.Write(p[done:])
		<-c.turn
		done += n
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
		if now, stopped := c.stopState(); !stopped && now == before {
			return done, err // it was the user's deadline
		}
	}
}

func (c *channel) stopState() (stops int, stopped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stops, c.stopped
}

// SetWriteDeadline implements net.Conn.
func (c *channel) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	if c.stopped {
		return nil
	}
	return c.UnixConn.SetWriteDeadline(t)
}

// SetReadDeadline implements net.Conn.
func (c *channel) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readDeadline = t
	if c.reads && c.stopped {
		return nil
	}
	return c.UnixConn.SetReadDeadline(t)
}

// SetDeadline implements net.Conn.
func (c *channel) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// Close implements net.Conn.
func (c *channel) Close() error {
	c.close.Do(func() { close(c.closed) })
	return c.UnixConn.Close()
}

// stop lets nothing more into the channel until resume is called. What a writer has
// not written yet it writes then.
func (c *channel) stop() error {
	c.mu.Lock()
	c.stops++
	c.stopped = true
	err := c.UnixConn.SetWriteDeadline(time.Unix(1, 0))
	if c.reads {
		err = errors.Join(err, c.UnixConn.SetReadDeadline(time.Unix(1, 0)))
	}
	c.mu.Unlock()
	c.turn <- struct{}{}
	if c.reads {
		c.readTurn <- struct{}{}
	}
	return err
}

// resume undoes stop.
func (c *channel) resume() {
	c.mu.Lock()
	c.stopped = false
	_ = c.UnixConn.SetWriteDeadline(c.deadline)
	if c.reads {
		_ = c.UnixConn.SetReadDeadline(c.readDeadline)
	}
	c.mu.Unlock()
	<-c.turn
	if c.reads {
		<-c.readTurn
	}
}

// still is what does not change while QEMU neither takes anything from the channel
// nor puts anything into it: bytes that are waiting in either direction and bytes
// that were received.
type still struct {
	out, in  int
	received uint64
}

func (c *channel) still() (s still, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return still{}, err
	}
	s.received = c.received.Load()
	var outErr, inErr error
	err = raw.Control(func(fd uintptr) {
		s.out, outErr = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
		s.in, inErr = unix.IoctlGetInt(int(fd), unix.TIOCINQ)
	})
	return s, errors.Join(err, outErr, inErr)
}
