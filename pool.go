package bouvet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// rpcConn is a connection to the JSON-RPC port. It belongs to one call at a time.
type rpcConn struct {
	net.Conn
	lines     *wire.LineReader
	gate      *replyGate
	closeOnce sync.Once
	bulk      bool // it is for one call
}

// close is safe for concurrent use with a call, which it ends.
func (r *rpcConn) close() {
	r.closeOnce.Do(func() {
		close(r.gate.closed)
		_ = r.Close()
	})
}

// discard closes a connection that no call uses any more and gives back what it
// holds.
func (r *rpcConn) discard() {
	r.close()
	r.lines.Close()
}

// replyGate bounds the large replies of one client. It implements wire.Limiter
// for one connection.
type replyGate struct {
	slots  chan struct{}
	closed chan struct{} // closed with the connection
	until  time.Time     // the deadline of the call under way
}

// Acquire implements wire.Limiter.
func (g *replyGate) Acquire() error {
	late := time.NewTimer(time.Until(g.until))
	defer late.Stop()
	select {
	case g.slots <- struct{}{}:
		return nil
	case <-g.closed:
		return net.ErrClosed
	case <-late.C:
		return os.ErrDeadlineExceeded
	}
}

// Release implements wire.Limiter.
func (g *replyGate) Release() { <-g.slots }

// acquire returns a connection for one call, and whether it was used before. A
// fresh one is dialled when fresh is set or none is idle.
func (c *AgentClient) acquire(ctx context.Context, fresh bool) (conn *rpcConn, reused bool, err error) {
	for !fresh {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			break
		}
		conn := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if quiet(conn.Conn) {
			return conn, true, nil
		}
		conn.discard()
	}
	raw, err := c.dial(ctx, wire.PortRPC)
	if err != nil {
		return nil, false, err
	}
	return c.newConn(raw), false, nil
}

// release takes conn back after a call that went well.
func (c *AgentClient) release(conn *rpcConn, replyLen int) {
	// Bytes beyond the reply answer nobody's question (threat T19), and a reader
	// that has seen a large line holds its buffer until the next.
	if conn.bulk || conn.lines.Buffered() > 0 || replyLen >= wire.LargeLine/2 {
		conn.discard()
		return
	}
	if conn.SetDeadline(time.Time{}) != nil {
		conn.discard()
		return
	}
	c.mu.Lock()
	keep := c.life.Err() == nil && len(c.idle) < maxIdle
	if keep {
		c.idle = append(c.idle, conn)
	}
	c.mu.Unlock()
	if !keep {
		conn.discard()
	}
}

// enter takes a slot for a call.
func (c *AgentClient) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	select {
	case c.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("cannot begin call, %d are under way: %w", cap(c.slots), context.Cause(ctx))
	}
}

func (c *AgentClient) leave() { <-c.slots }

// brokenOff makes the ways in which a peer can end a stream one: to whoever waits
// for more, each is io.ErrUnexpectedEOF.
func brokenOff(err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return fmt.Errorf("%w (%w)", io.ErrUnexpectedEOF, err)
	default:
		return err
	}
}

// isTimeout reports whether a read or write ended at its deadline.
func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}
