package firecracker

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/vsock"
)

const (
	// Firecracker does not answer for a guest that is not up, or stands still, and
	// forgets requests only when others come. So each attempt has its own time, the
	// first this long, and every further one twice that, up to the longest.
	firstAttempt, longestAttempt = 250 * time.Millisecond, 8 * time.Second
	// maxStreams bounds the streams of a machine. Firecracker drops what comes after
	// its 1023rd, and its own files count against its limit of 2048.
	maxStreams = 512
)

var errManyStreams = errors.New("too many streams are open")

// A channel opens streams through Firecracker's hybrid vsock. It implements
// life.Channel.
type channel struct {
	dial func(ctx context.Context) (net.Conn, error)

	mu      sync.Mutex
	streams map[*stream]struct{}
	opening int
	closed  bool
	done    chan struct{}
	ended   sync.Once
}

func newChannel(dial func(ctx context.Context) (net.Conn, error)) *channel {
	return &channel{dial: dial, streams: map[*stream]struct{}{}, done: make(chan struct{})}
}

// A stream is a connection to the agent. It hides what else the connection can do:
// closing one direction would end both.
type stream struct {
	net.Conn
	channel *channel
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.channel.mu.Lock()
	delete(s.channel.streams, s)
	s.channel.mu.Unlock()
	return s.Conn.Close()
}

// Dial implements life.Channel. It goes on until ctx ends while nobody answers, and
// reports a guest that refuses the port at once.
func (c *channel) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	var s *stream
	conn, err := c.open(ctx, port)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opening--
	if err != nil {
		return nil, err
	}
	if c.closed {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	s = &stream{conn, c}
	c.streams[s] = struct{}{}
	return s, nil
}

func (c *channel) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return net.ErrClosed
	case len(c.streams)+c.opening >= maxStreams:
		return errManyStreams
	}
	c.opening++
	return nil
}

func (c *channel) open(ctx context.Context, port uint32) (net.Conn, error) {
	for limit := firstAttempt; ; limit = min(2*limit, longestAttempt) {
		conn, err := c.attempt(ctx, limit, port)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
			c.end() // Firecracker keeps its socket open as long as it lives
			return nil, err
		case !errors.Is(err, context.DeadlineExceeded):
			return nil, err
		}
		select {
		case <-c.done:
			return nil, net.ErrClosed
		default:
		}
	}
}

func (c *channel) attempt(ctx context.Context, limit time.Duration, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	if err := vsock.Handshake(ctx, conn, port); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Done implements life.Channel.
func (c *channel) Done() <-chan struct{} { return c.done }

func (c *channel) end() { c.ended.Do(func() { close(c.done) }) }

// Close implements life.Channel.
func (c *channel) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
	c.reset()
	return nil
}

// reset ends every stream there is. The guest's ends do not outlive a snapshot, and
// Firecracker would not tell.
func (c *channel) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.streams {
		_ = s.Conn.Close()
	}
	clear(c.streams)
}
