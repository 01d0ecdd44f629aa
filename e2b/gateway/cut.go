package gateway

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// errEnded is why the requests of a sandbox end when it does.
var errEnded = errors.New("the sandbox has ended, or is paused")

// A cutter is a response that ends with its sandbox, however its handler or its client
// behave. What was not begun by then is an answer that the sandbox is not there; what was
// breaks off, so that no client takes a part for the whole.
type cutter struct {
	http.ResponseWriter
	ended <-chan struct{}

	mu    sync.Mutex
	begun bool     // guarded by mu
	over  bool     // guarded by mu
	conn  net.Conn // taken over by the handler; guarded by mu
}

// serveUntil has h answer a request, with a context that ends with the sandbox.
func serveUntil(w http.ResponseWriter, r *http.Request, id daemon.ID, ended <-chan struct{}, h func(http.ResponseWriter, *http.Request)) {
	c := &cutter{ResponseWriter: w, ended: ended}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	var watch sync.WaitGroup
	done := make(chan struct{})
	watch.Go(func() {
		select {
		case <-ended:
			cancel(errEnded)
			c.cut(r)
		case <-done:
		}
	})
	// Whatever becomes of h: the next request on this connection has deadlines of its own.
	stop := sync.OnceFunc(func() { close(done); watch.Wait() })
	defer stop()
	h(c, r.WithContext(ctx))
	stop()
	select {
	case <-ended:
		c.finish(id)
	default:
	}
}

// cut makes whatever blocks in the response fail.
func (c *cutter) cut(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	if c.conn != nil {
		_ = c.conn.Close()
		return
	}
	control := http.NewResponseController(c.ResponseWriter)
	past := time.Unix(1, 0)
	if c.begun {
		_ = control.SetWriteDeadline(past)
	}
	if r.Body != nil && r.Body != http.NoBody {
		_ = control.SetReadDeadline(past)
	}
}

// finish ends a response whose sandbox has ended.
func (c *cutter) finish(id daemon.ID) {
	c.mu.Lock()
	begun, taken := c.begun, c.conn != nil
	c.mu.Unlock()
	switch {
	case taken:
	case begun:
		panic(http.ErrAbortHandler)
	default:
		clear(c.Header())
		notFound(id).write(c.ResponseWriter)
	}
}

// begin notes that the response begins, unless it is over before.
func (c *cutter) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.ended:
		c.over = true
	default:
	}
	if c.over {
		return false
	}
	c.begun = true
	return true
}

// WriteHeader implements http.ResponseWriter.
func (c *cutter) WriteHeader(code int) {
	if code >= 100 && code < 200 && code != http.StatusSwitchingProtocols {
		c.mu.Lock()
		over := c.over
		c.mu.Unlock()
		if !over {
			c.ResponseWriter.WriteHeader(code)
		}
		return
	}
	if c.begin() {
		c.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (c *cutter) Write(p []byte) (int, error) {
	if !c.begin() {
		return 0, errEnded
	}
	return c.ResponseWriter.Write(p)
}

// FlushError is what http.ResponseController looks for.
func (c *cutter) FlushError() error {
	if !c.begin() {
		return errEnded
	}
	return http.NewResponseController(c.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (c *cutter) Flush() { _ = c.FlushError() }

// Hijack implements http.Hijacker.
func (c *cutter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !c.begin() {
		return nil, nil, errEnded
	}
	conn, rw, err := http.NewResponseController(c.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn = conn
	if c.over {
		_ = conn.Close()
	}
	return conn, rw, nil
}

// Unwrap lets http.ResponseController reach what else the connection can do.
func (c *cutter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

var (
	_ http.Flusher  = (*cutter)(nil)
	_ http.Hijacker = (*cutter)(nil)
)
