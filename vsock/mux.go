package vsock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/hashicorp/yamux"
)

// maxOpening bounds how many streams of a mux may be opening at once.
const maxOpening = 64

// A Mux is the host's end of a channel that carries many streams to ports of the
// agent. Its methods are safe for concurrent use.
type Mux struct {
	ch        Channel
	ready     chan struct{} // closed when link or err is set
	done      chan struct{} // closed when the session has ended
	closeOnce sync.Once
	opening   chan struct{} // an element for each stream being opened

	link *muxLink // set before ready is closed
	err  error    // why there is no session; set before ready is closed
}

// NewMux takes over ch and begins to agree with the guest on a session, in the
// background: a Dial waits for it. Another session may have used ch before.
func NewMux(ch Channel) *Mux { return newMux(ch, muxPadding) }

// NewFirstMux is NewMux for a channel that no session has used.
func NewFirstMux(ch Channel) *Mux { return newMux(ch, 0) }

func newMux(ch Channel, padding int) *Mux {
	m := &Mux{
		ch: ch, ready: make(chan struct{}), done: make(chan struct{}),
		opening: make(chan struct{}, maxOpening),
	}
	go m.run(padding)
	return m
}

// run owns the session from preamble to end.
func (m *Mux) run(padding int) {
	defer close(m.done)
	defer func() { _ = m.ch.Close() }()
	link, err := m.start(padding)
	if err != nil {
		m.err = fmt.Errorf("cannot start mux session: %w", err)
		close(m.ready)
		return
	}
	m.link = link
	close(m.ready)
	defer link.close()
	// The guard refuses the streams that a guest opens, so this returns when the
	// session has ended.
	if s, err := link.session.AcceptStream(); err == nil {
		_ = s.Close()
	}
}

func (m *Mux) start(padding int) (*muxLink, error) {
	r := bufio.NewReaderSize(m.ch, channelBuffer)
	if err := offerPreamble(m.ch, r, padding); err != nil {
		return nil, err
	}
	return newMuxLink(m.ch, r, true, func() { _ = m.ch.Close() })
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
		if m.link.session.IsClosed() {
			err = fmt.Errorf("%w: %w", net.ErrClosed, err)
		}
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// open opens a stream. It waits while too many have been opened that the guest has
// not accepted, and then ctx leaves it behind until there is room or the session
// ends; maxOpening bounds how many are left so.
func (m *Mux) open(ctx context.Context) (net.Conn, error) {
	select {
	case m.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type result struct {
		stream *yamux.Stream
		err    error
	}
	opened := make(chan result)
	go func() {
		defer func() { <-m.opening }()
		s, err := m.link.session.OpenStream()
		select {
		case opened <- result{s, err}:
		case <-ctx.Done():
			if err == nil {
				_ = newMuxConn(s, m.link).Close()
			}
		}
	}()
	select {
	case r := <-opened:
		if r.err != nil {
			return nil, fmt.Errorf("cannot open stream: %w", muxError(r.err))
		}
		return newMuxConn(r.stream, m.link), nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Done is closed when the mux has ended, by Close or by its peer.
func (m *Mux) Done() <-chan struct{} { return m.done }

// Close ends the session and all its streams and closes the channel. It is
// idempotent and returns when the mux has ended.
func (m *Mux) Close() error {
	// The reader of the channel, preamble or session, ends all the rest.
	m.closeOnce.Do(func() { _ = m.ch.Close() })
	<-m.done
	return nil
}
