package vsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// A MuxListener is the guest's end of a Mux: Accept returns the streams that the
// host opens, each of which begins with a CONNECT line. When a session ends
// while the channel lives (the host's process was replaced), it waits for the
// next.
type MuxListener struct {
	ch        Channel
	streams   chan net.Conn
	ended     chan struct{} // closed when the channel has ended
	closed    chan struct{} // closed by Close
	closeOnce sync.Once
	err       error // why it ended; set before ended is closed
}

// NewMuxListener takes over ch.
func NewMuxListener(ch Channel) *MuxListener {
	l := &MuxListener{ch: ch, streams: make(chan net.Conn), ended: make(chan struct{}), closed: make(chan struct{})}
	go l.run()
	return l
}

func (l *MuxListener) run() {
	defer close(l.ended)
	for {
		if err := l.serveSession(); err != nil {
			select {
			case <-l.closed:
				err = net.ErrClosed
			default:
			}
			l.err = err
			_ = l.ch.Close()
			return
		}
	}
}

// serveSession serves one session; an error means that the channel has ended.
func (l *MuxListener) serveSession() error {
	if err := l.ch.SetDeadline(time.Time{}); err != nil {
		return err
	}
	p := &preambleReader{r: l.ch}
	if err := acceptPreamble(l.ch, p); err != nil {
		return err
	}
	watch := &endWatch{r: p}
	session, err := yamux.Server(sessionChannel{watch, l.ch}, muxConfig())
	if err != nil {
		return err
	}
	defer session.Close()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-l.closed:
			_ = session.Close()
		case <-stop:
		}
	}()
	for {
		s, err := session.AcceptStream()
		if err != nil {
			_ = session.Close()
			return watch.ended()
		}
		select {
		case l.streams <- &muxConn{Stream: s}:
		case <-l.closed:
			_ = s.Close()
			return net.ErrClosed
		}
	}
}

// endWatch remembers whether the channel itself ended, which a session's error
// does not tell.
type endWatch struct {
	r   io.Reader
	mu  sync.Mutex
	err error // guarded by mu
}

func (w *endWatch) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	if err != nil && !isTimeout(err) {
		w.mu.Lock()
		w.err = err
		w.mu.Unlock()
	}
	return n, err
}

func (w *endWatch) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// sessionChannel is the channel as one session sees it: closing it unblocks the
// session and leaves the channel open for the next.
type sessionChannel struct {
	io.Reader
	ch Channel
}

func (s sessionChannel) Write(b []byte) (int, error) { return s.ch.Write(b) }
func (s sessionChannel) Close() error                { return s.ch.SetDeadline(time.Unix(1, 0)) }

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

// Close implements net.Listener. It closes the channel too.
func (l *MuxListener) Close() error {
	l.closeOnce.Do(func() {
		close(l.closed)
		_ = l.ch.SetDeadline(time.Unix(1, 0))
	})
	<-l.ended
	return nil
}

// Addr implements net.Listener.
func (l *MuxListener) Addr() net.Addr { return muxAddr{} }

type muxAddr struct{}

func (muxAddr) Network() string { return "mux" }
func (muxAddr) String() string  { return "mux" }
