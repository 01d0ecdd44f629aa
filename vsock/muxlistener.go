package vsock

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// A MuxListener is the guest's end of a Mux: Accept returns the streams that the
// host opens, each of which begins with a CONNECT line. When a session ends
// while the channel lives (the host's process was replaced), it waits for the
// next.
type MuxListener struct {
	ch      Channel
	r       *bufio.Reader // of ch, over all sessions
	streams chan net.Conn
	ended   chan struct{} // closed when the channel has ended
	closed  chan struct{} // closed by Close
	err     error         // why it ended; set before ended is closed

	mu sync.Mutex // orders Close and the channel's deadline
}

// NewMuxListener takes over ch.
func NewMuxListener(ch Channel) *MuxListener {
	l := &MuxListener{
		ch: ch, streams: make(chan net.Conn),
		ended: make(chan struct{}), closed: make(chan struct{}),
	}
	l.r = bufio.NewReaderSize(&stickyEnd{r: ch}, channelBuffer)
	go l.run()
	return l
}

// stickyEnd makes the end of a channel last: a session's reader may have taken it.
type stickyEnd struct {
	r   io.Reader
	err error
}

// Read implements io.Reader.
func (s *stickyEnd) Read(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.r.Read(b)
	if err != nil && !isTimeout(err) {
		s.err = err
	}
	return n, err
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

func (l *MuxListener) run() {
	defer close(l.ended)
	defer func() { _ = l.ch.Close() }()
	for {
		if err := l.serveSession(); err != nil {
			switch {
			case isClosed(l.closed):
				err = net.ErrClosed
			case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.ECONNRESET):
				err = io.EOF // the host went away while we wrote to it
			}
			l.err = err
			return
		}
	}
}

// resume lifts the deadline that ended the last session's I/O.
func (l *MuxListener) resume() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.closed) {
		return net.ErrClosed
	}
	return l.ch.SetDeadline(time.Time{})
}

// interrupt ends all I/O on the channel and leaves it open.
func (l *MuxListener) interrupt() { _ = l.ch.SetDeadline(time.Unix(1, 0)) }

// serveSession serves one session; an error means that the channel has ended. How
// a session ended does not tell that: the next one's preamble will.
func (l *MuxListener) serveSession() error {
	if err := l.resume(); err != nil {
		return err
	}
	if err := acceptPreamble(l.ch, l.r); err != nil {
		return err
	}
	link, err := newMuxLink(l.ch, l.r, false, l.interrupt)
	if err != nil {
		return err
	}
	defer link.close()
	// Close interrupts the channel, and so the session, which ends this loop.
	for {
		s, err := link.session.AcceptStream()
		if err != nil {
			return nil // the session has ended; the channel may live
		}
		conn := newMuxConn(s, link)
		select {
		case l.streams <- conn:
		case <-link.session.CloseChan():
			_ = conn.Close()
		case <-l.closed:
			_ = conn.Close()
			return net.ErrClosed
		}
	}
}

// Accept implements net.Listener. Once the channel has ended it returns io.EOF
// (the host went away) or what broke it.
func (l *MuxListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.streams:
		return c, nil
	case <-l.ended:
		if errors.Is(l.err, io.EOF) || errors.Is(l.err, net.ErrClosed) {
			return nil, l.err
		}
		return nil, fmt.Errorf("mux channel ended: %w", l.err)
	}
}

// Close implements net.Listener. It ends the session, its streams and the channel,
// is idempotent, and returns when that is done.
func (l *MuxListener) Close() error {
	l.mu.Lock()
	if !isClosed(l.closed) {
		close(l.closed)
		l.interrupt()
	}
	l.mu.Unlock()
	<-l.ended
	return nil
}

// Addr implements net.Listener.
func (l *MuxListener) Addr() net.Addr { return muxAddr{} }
