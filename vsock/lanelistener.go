package vsock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// A LaneListener is the guest's end of a Lane: Accept returns one stream after the
// other, each of which begins with a CONNECT line.
type LaneListener struct {
	ch      Channel
	r       *bufio.Reader
	streams chan net.Conn
	ended   chan struct{} // closed when the channel has ended
	closed  chan struct{} // closed by Close
	err     error         // why it ended; set before ended is closed

	mu sync.Mutex // orders Close and the channel's deadline
}

// laneBuffer is how much is read at once where no reader has room for more: a page, for
// a virtio-serial port gives no more.
const laneBuffer = 4 << 10

// NewLaneListener takes over ch.
func NewLaneListener(ch Channel) *LaneListener {
	l := &LaneListener{ch: ch, streams: make(chan net.Conn), ended: make(chan struct{}), closed: make(chan struct{})}
	l.r = bufio.NewReaderSize(&stickyEnd{r: ch}, laneBuffer)
	go l.run()
	return l
}

func (l *LaneListener) run() {
	defer close(l.ended)
	defer func() { _ = l.ch.Close() }()
	for {
		if err := l.serve(); err != nil {
			if isClosed(l.closed) {
				err = net.ErrClosed
			}
			l.err = err
			return
		}
	}
}

// serve serves one stream; an error means that the channel has ended.
func (l *LaneListener) serve() error {
	if err := l.resume(); err != nil {
		return err
	}
	if err := acceptPreamble(l.ch, l.r); err != nil {
		return err
	}
	conn := newLaneConn(l.ch, l.r, true)
	select {
	case l.streams <- conn:
	case <-l.closed:
		return net.ErrClosed
	}
	select {
	case <-conn.closed:
	case <-l.closed:
		_ = conn.Close()
	}
	conn.settle()
	return nil
}

// resume lifts the deadline that ended the last stream's I/O.
func (l *LaneListener) resume() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.closed) {
		return net.ErrClosed
	}
	return l.ch.SetDeadline(time.Time{})
}

// Accept implements net.Listener. Once the channel has ended it returns io.EOF, or what
// broke it.
func (l *LaneListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.ended:
		if errors.Is(l.err, io.EOF) || errors.Is(l.err, net.ErrClosed) {
			return nil, l.err
		}
		return nil, fmt.Errorf("lane ended: %w", l.err)
	}
}

// Close implements net.Listener. It ends the stream and the channel, is idempotent, and
// returns when that is done.
func (l *LaneListener) Close() error {
	l.mu.Lock()
	if !isClosed(l.closed) {
		close(l.closed)
		_ = l.ch.SetDeadline(time.Unix(1, 0))
	}
	l.mu.Unlock()
	<-l.ended
	return nil
}

// Addr implements net.Listener.
func (l *LaneListener) Addr() net.Addr { return muxAddr{} }
