package vsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
)

// A Channel is the one byte stream under a mux: a *net.UnixConn, or an *os.File
// of a pollable device.
type Channel interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
}

// helloInterval is how often the host repeats its hello until the guest answers.
// On a channel that loses nothing the first one counts, whenever it is read.
const helloInterval = 250 * time.Millisecond

// window is how many bytes of one stream may be under way unread.
const window = 1 << 20

func muxConfig() *yamux.Config {
	c := yamux.DefaultConfig()
	// A paused or stopped guest is not a dead one: the driver watches its life.
	c.EnableKeepAlive = false
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 30 * time.Second
	c.ConnectionWriteTimeout = 30 * time.Second
	c.MaxStreamWindowSize = window
	c.LogOutput = io.Discard
	return c
}

// A Mux is the host's end of a channel that carries many streams to ports of the
// agent. Its methods are safe for concurrent use.
type Mux struct {
	ch        Channel
	ready     chan struct{} // closed when session or err is set
	done      chan struct{} // closed when the session has ended
	closeOnce sync.Once
	closed    chan struct{} // closed by Close

	session *yamux.Session // set before ready is closed
	err     error          // why there is no session; set before ready is closed
}

// NewMux takes over ch and begins to agree with the guest on a session, in the
// background: a Dial waits for it.
func NewMux(ch Channel) *Mux {
	m := &Mux{ch: ch, ready: make(chan struct{}), done: make(chan struct{}), closed: make(chan struct{})}
	go m.run()
	return m
}

// run owns the session from preamble to end.
func (m *Mux) run() {
	defer close(m.done)
	session, err := m.start()
	if err != nil {
		m.err = fmt.Errorf("cannot start mux session: %w", err)
		close(m.ready)
		_ = m.ch.Close()
		return
	}
	m.session = session
	close(m.ready)
	// The host offers a guest nothing: a stream that the guest opens is an attack
	// or a defect, and ends the session (threat T19).
	if s, err := session.AcceptStream(); err == nil {
		_ = s.Close()
	}
	_ = session.Close()
}

func (m *Mux) start() (*yamux.Session, error) {
	nonce := newNonce()
	if err := writePreamble(m.ch, "hello", nonce); err != nil {
		return nil, err
	}
	echoed := make(chan struct{})
	var again sync.WaitGroup
	again.Go(func() {
		tick := time.NewTicker(helloInterval)
		defer tick.Stop()
		for {
			select {
			case <-echoed:
				return
			case <-m.closed:
				return
			case <-tick.C:
				// A full channel means that the guest has not read the last one.
				if c, ok := m.ch.(interface{ SetWriteDeadline(time.Time) error }); ok {
					_ = c.SetWriteDeadline(time.Now().Add(helloInterval))
				}
				_ = writePreamble(m.ch, "hello", nonce)
			}
		}
	})
	p := &preambleReader{r: m.ch}
	err := p.awaitVerb("hello", nonce)
	close(echoed)
	again.Wait()
	if err != nil {
		return nil, err
	}
	if c, ok := m.ch.(interface{ SetWriteDeadline(time.Time) error }); ok {
		_ = c.SetWriteDeadline(time.Time{})
	}
	if err := writePreamble(m.ch, "start", nonce); err != nil {
		return nil, err
	}
	if err := p.awaitVerb("go", nonce); err != nil {
		return nil, err
	}
	return yamux.Client(joined{p, m.ch}, muxConfig())
}

// joined reads from the preamble's reader, which may hold bytes, and writes to
// and closes the channel.
type joined struct {
	io.Reader
	io.WriteCloser
}

// Dial opens a stream to port. ctx bounds the wait for the session and the
// handshake alone. It fails with an error wrapping net.ErrClosed once the mux has
// ended.
func (m *Mux) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if m.err != nil {
		return nil, fmt.Errorf("%w (%w)", m.err, net.ErrClosed)
	}
	conn, err := m.open(ctx)
	if err != nil {
		return nil, err
	}
	if err := Handshake(ctx, conn, port); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// open opens a stream, which blocks while the channel is full, so it is left
// behind when ctx ends; yamux bounds it by ConnectionWriteTimeout.
func (m *Mux) open(ctx context.Context) (net.Conn, error) {
	type result struct {
		s   *yamux.Stream
		err error
	}
	opened := make(chan result, 1)
	go func() {
		s, err := m.session.OpenStream()
		opened <- result{s, err}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("cannot open stream: %w", muxError(r.err))
		}
		return &muxConn{Stream: r.s}, nil
	case <-ctx.Done():
		go func() {
			if r := <-opened; r.err == nil {
				_ = r.s.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// Done is closed when the mux has ended, by Close or by its peer.
func (m *Mux) Done() <-chan struct{} { return m.done }

// Close ends the session and all its streams and closes the channel. It is
// idempotent and returns when the mux has ended.
func (m *Mux) Close() error {
	m.closeOnce.Do(func() {
		close(m.closed)
		_ = m.ch.Close()
		select {
		case <-m.ready:
			if m.session != nil {
				_ = m.session.Close()
			}
		default:
		}
	})
	<-m.done
	return nil
}

// muxConn is a stream whose Close unblocks its own pending reads, as net.Conn
// asks and yamux does not do.
type muxConn struct {
	*yamux.Stream
	closeOnce sync.Once
	closed    bool
	mu        sync.Mutex // guards closed
}

func (c *muxConn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

func (c *muxConn) Read(b []byte) (int, error) {
	n, err := c.Stream.Read(b)
	if err != nil && c.isClosed() {
		return n, net.ErrClosed
	}
	return n, muxError(err)
}

func (c *muxConn) Write(b []byte) (int, error) {
	n, err := c.Stream.Write(b)
	return n, muxError(err)
}

func (c *muxConn) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		_ = c.Stream.Close()
		_ = c.SetDeadline(time.Unix(1, 0))
	})
	return nil
}

func (c *muxConn) SetDeadline(t time.Time) error { return c.Stream.SetDeadline(t) }

// muxError turns yamux's errors into those of package net, so that callers need
// to know only these.
func muxError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, yamux.ErrTimeout):
		return os.ErrDeadlineExceeded
	case errors.Is(err, yamux.ErrSessionShutdown), errors.Is(err, yamux.ErrStreamClosed), errors.Is(err, yamux.ErrConnectionReset):
		return fmt.Errorf("%w: %w", net.ErrClosed, err)
	default:
		return err
	}
}
