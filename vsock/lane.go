package vsock

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A lane is a channel that carries one stream at a time, in pieces with their length
// before them, for what is so much that a mux in between is felt: each frame of a mux
// passes through three goroutines, which an emulated processor takes hundreds of
// microseconds for. A stream begins with the preamble, whatever is left of the one
// before. Then come chunks: eight bytes of length, big-endian, and at most laneChunk
// bytes. (Eight, so that all that is in memory stays aligned: see copyPiece.) Length 0 is the end, and a longer one that of a peer that has gone on to the
// next preamble.
const (
	laneChunk     = 256<<10 - laneHeaderLen
	laneHeaderLen = 8
	// lanePadding fills up the chunk that the last stream may have broken off in.
	lanePadding = laneChunk + laneHeaderLen
)

const (
	// lanePreamble bounds the agreement on a stream.
	lanePreamble = 10 * time.Second
	// laneEnd bounds the writing of a stream's end.
	laneEnd = time.Second
)

// ErrLaneBusy means that a lane carries a stream, or is of no use any more.
var ErrLaneBusy = errors.New("lane is busy")

// laneConn is a stream of a lane.
type laneConn struct {
	ch    Channel
	r     *bufio.Reader
	guest bool

	mu     sync.Mutex // orders Close, deadlines and what comes after the stream
	closed chan struct{}

	reading chan struct{} // held by a reader
	left    int           // bytes of the chunk; guarded by reading
	ended   error         // why no more comes; guarded by reading

	writing chan struct{} // held by a writer
	buf     []byte        // guarded by writing
	pending []byte        // the rest of a chunk, in buf; guarded by writing
}

func newLaneConn(ch Channel, r *bufio.Reader, guest bool) *laneConn {
	return &laneConn{
		ch: ch, r: r, guest: guest, closed: make(chan struct{}),
		reading: make(chan struct{}, 1), writing: make(chan struct{}, 1),
	}
}

// Read implements net.Conn.
func (c *laneConn) Read(b []byte) (int, error) {
	if !c.enter(c.reading) {
		return 0, net.ErrClosed
	}
	defer func() { <-c.reading }()
	if len(b) == 0 {
		return 0, nil
	}
	if err := c.nextChunk(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(b[:min(len(b), c.left)])
	c.left -= n
	if n > 0 {
		return n, nil
	}
	return 0, c.failed(err)
}

// enter waits for the turn of a reader or a writer, which there is not after Close.
func (c *laneConn) enter(turn chan struct{}) bool {
	select {
	case turn <- struct{}{}:
		return true
	case <-c.closed:
		return false
	}
}

// nextChunk waits for bytes that are the stream's.
func (c *laneConn) nextChunk() error {
	switch {
	case isClosed(c.closed):
		return net.ErrClosed
	case c.left > 0 || c.ended != nil:
		return c.ended
	}
	// A deadline that strikes in a header leaves it whole for the next reader.
	header, err := c.r.Peek(laneHeaderLen)
	if err != nil {
		return c.failed(err)
	}
	n := binary.BigEndian.Uint64(header)
	switch {
	case n == 0:
		c.ended = io.EOF
	case n > laneChunk:
		c.ended = syscall.ECONNRESET // the header may be part of the next preamble
		return c.ended
	}
	c.left = int(n)
	_, _ = c.r.Discard(laneHeaderLen)
	return c.ended
}

// failed gives the error of the channel that of a stream.
func (c *laneConn) failed(err error) error {
	if isClosed(c.closed) {
		return net.ErrClosed
	}
	return err
}

// Write implements net.Conn. Of what it counts as written the end of a chunk may wait
// for the next Write, if a deadline struck.
func (c *laneConn) Write(b []byte) (total int, err error) {
	if !c.enter(c.writing) {
		return 0, net.ErrClosed
	}
	defer func() { <-c.writing }()
	for len(b) > 0 {
		if isClosed(c.closed) {
			return total, net.ErrClosed
		}
		if c.guest && c.hostGone() {
			return total, syscall.EPIPE
		}
		if err := c.flush(); err != nil {
			return total, c.failed(err)
		}
		n := min(len(b), laneChunk)
		if c.buf == nil {
			c.buf = make([]byte, laneHeaderLen+laneChunk)
		}
		binary.BigEndian.PutUint64(c.buf, uint64(n))
		copyBytes(c.buf[laneHeaderLen:], b[:n])
		c.pending = c.buf[:laneHeaderLen+n]
		if err := c.flush(); err != nil {
			if len(c.pending) == laneHeaderLen+n {
				c.pending = nil // nothing of it has gone
			} else {
				total += n
			}
			return total, c.failed(err)
		}
		b, total = b[n:], total+n
	}
	return total, nil
}

// flush writes what waits. It is for who holds writing.
func (c *laneConn) flush() error {
	if len(c.pending) == 0 {
		return nil
	}
	n, err := c.ch.Write(c.pending)
	c.pending = c.pending[n:]
	return err
}

// hostGone reports whether the host has given the stream up. It goes on reading then, so
// that nothing else would tell a guest that only writes.
func (c *laneConn) hostGone() bool {
	select {
	case c.reading <- struct{}{}:
		defer func() { <-c.reading }()
	default:
		return false // the reader will see it
	}
	if c.left > 0 || c.ended == nil && c.r.Buffered() == 0 && !readable(c.ch) {
		return false
	}
	err := c.nextChunk()
	return err != nil && !isTimeout(err)
}

// readable reports whether a read of ch would not wait.
func readable(ch Channel) bool {
	if p, ok := ch.(interface{ readable() bool }); ok {
		return p.readable()
	}
	sc, ok := ch.(syscall.Conn)
	if !ok {
		return false
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	err = rc.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}} //nolint:gosec // descriptors are small.
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n > 0
	})
	return ready && err == nil
}

// Close implements net.Conn. Whoever made the conn goes on with the channel.
func (c *laneConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !isClosed(c.closed) {
		close(c.closed)
		_ = c.ch.SetDeadline(time.Unix(1, 0))
	}
	return nil
}

// settle returns when nobody uses the channel for a stream that was closed, and nobody
// will. The peer has been told then, if that was possible.
func (c *laneConn) settle() {
	c.reading <- struct{}{}
	c.writing <- struct{}{}
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.ch.SetDeadline(time.Time{})
	if len(c.pending) == 0 {
		_ = c.ch.SetWriteDeadline(time.Now().Add(laneEnd))
		_, _ = c.ch.Write(make([]byte, laneHeaderLen))
		_ = c.ch.SetWriteDeadline(time.Time{})
	}
}

// LocalAddr implements net.Conn.
func (c *laneConn) LocalAddr() net.Addr { return muxAddr{} }

// RemoteAddr implements net.Conn.
func (c *laneConn) RemoteAddr() net.Addr { return muxAddr{} }

// SetDeadline implements net.Conn.
func (c *laneConn) SetDeadline(t time.Time) error { return c.deadline(c.ch.SetDeadline, t) }

// SetReadDeadline implements net.Conn.
func (c *laneConn) SetReadDeadline(t time.Time) error { return c.deadline(c.ch.SetReadDeadline, t) }

// SetWriteDeadline implements net.Conn.
func (c *laneConn) SetWriteDeadline(t time.Time) error { return c.deadline(c.ch.SetWriteDeadline, t) }

func (c *laneConn) deadline(set func(time.Time) error, t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isClosed(c.closed) {
		return net.ErrClosed
	}
	return set(t)
}

// A Lane is the host's end of a lane. Its methods are safe for concurrent use.
type Lane struct {
	ch   Channel
	r    *bufio.Reader
	turn chan struct{} // an element while a stream is carried, or the next one is agreed on
	done chan struct{} // closed by Close

	mu     sync.Mutex
	agreed bool           // the guest waits for a stream; guarded by turn
	uses   sync.WaitGroup // goroutines; mu orders its beginning and Close
}

// NewLane takes over ch. It does nothing until somebody dials.
func NewLane(ch Channel) *Lane {
	l := &Lane{ch: ch, turn: make(chan struct{}, 1), done: make(chan struct{})}
	l.r = bufio.NewReaderSize(&stickyEnd{r: ch}, laneChunk)
	return l
}

// Dial opens a stream to port, or fails at once with ErrLaneBusy while there is another.
// ctx bounds the call alone.
func (l *Lane) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	select {
	case l.turn <- struct{}{}:
	default:
		return nil, ErrLaneBusy
	}
	if !l.agreed {
		result := make(chan error, 1)
		if !l.use(func() { result <- l.agree() }) {
			return nil, net.ErrClosed
		}
		select {
		case err := <-result:
			if err != nil {
				return nil, fmt.Errorf("cannot begin stream: %w", err)
			}
		case <-ctx.Done():
			l.use(func() {
				if <-result == nil {
					<-l.turn
				}
			})
			return nil, context.Cause(ctx)
		}
	}
	conn := newLaneConn(l.ch, l.r, false)
	if !l.use(func() { l.watch(conn) }) {
		return nil, net.ErrClosed
	}
	if err := Handshake(ctx, conn, port); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// use runs f in a goroutine that Close waits for, unless the lane is closed.
func (l *Lane) use(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.done) {
		return false
	}
	l.uses.Go(f)
	return true
}

// agree begins a stream, with all that is left of others behind it. It is for the holder
// of the turn, who keeps it if that fails: the lane is of no use any more then.
func (l *Lane) agree() error {
	late := time.AfterFunc(lanePreamble, func() { _ = l.ch.Close() })
	err := offerPreamble(l.ch, l.r, lanePadding)
	if !late.Stop() {
		err = errors.Join(os.ErrDeadlineExceeded, err)
	}
	if err != nil {
		_ = l.ch.Close()
	}
	l.agreed = err == nil
	return err
}

// watch waits for a stream's end and readies the lane for the next: meanwhile what the
// guest still sends is read, so that it is not held up.
func (l *Lane) watch(conn *laneConn) {
	select {
	case <-conn.closed:
	case <-l.done:
		_ = conn.Close()
	}
	conn.settle()
	if !isClosed(l.done) && l.agree() == nil {
		<-l.turn
	}
}

// Close ends the stream and the channel. It is idempotent and returns when nobody uses
// the channel any more.
func (l *Lane) Close() error {
	l.mu.Lock()
	if !isClosed(l.done) {
		close(l.done)
		_ = l.ch.Close()
	}
	l.mu.Unlock()
	l.uses.Wait()
	return nil
}
