package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/daemon"
)

const (
	// dialTimeout bounds the connection to a server in a sandbox, idleTimeout how long
	// one is kept that no request uses, and idlePerPort how many are.
	dialTimeout = 10 * time.Second
	idleTimeout = 30 * time.Second
	idlePerPort = 16
	idleInAll   = 64
	// maxHeader bounds the header of a response, in bytes.
	maxHeader = 256 << 10
	// continueTimeout is how long a server in a sandbox may think about whether it
	// wants a body, if the client asks.
	continueTimeout = 5 * time.Second
	// copyBuffer is what lies between a server and its client, in each direction.
	copyBuffer = 32 << 10
)

// A pool holds the connections to the servers of one run of a sandbox.
type pool struct {
	ended     <-chan struct{}
	transport *http.Transport
}

// poolOf returns the connections to a sandbox, which go when it ends.
func (g *Gateway) poolOf(use *daemon.Use) *pool {
	id := use.Sandbox.ID
	g.mu.Lock()
	defer g.mu.Unlock()
	if p := g.pools[id]; p != nil && p.ended == use.Ended {
		return p
	}
	client := use.Machine.Client()
	p := &pool{ended: use.Ended, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return dial(ctx, client, address) },
		// What the server says is for the client, compression included.
		DisableCompression:     true,
		MaxIdleConns:           idleInAll,
		MaxIdleConnsPerHost:    idlePerPort,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout:  continueTimeout,
		ReadBufferSize:         copyBuffer,
		WriteBufferSize:        copyBuffer,
	}}
	if g.closed {
		p.transport.DisableKeepAlives = true
		return p
	}
	g.pools[id] = p
	g.watches.Go(func() {
		select {
		case <-p.ended:
		case <-g.done:
		}
		g.mu.Lock()
		if g.pools[id] == p {
			delete(g.pools, id)
		}
		g.mu.Unlock()
		p.transport.CloseIdleConnections()
	})
	return p
}

// errClosed means that nothing listens at a port.
var errClosed = errors.New("port is closed")

// dial connects to a port of the sandbox of client, and of no other: the address is the
// one that addressOf made.
func dial(ctx context.Context, client *bouvet.AgentClient, address string) (net.Conn, error) {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, ok := parsePort(text)
	if !ok {
		return nil, fmt.Errorf("cannot connect to port %q", text)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := client.Forward(ctx, port)
	var answer *bouvet.RPCError
	if errors.As(err, &answer) && !answer.Timeout() {
		return nil, fmt.Errorf("%w: %w", errClosed, err) // the agent lives, and could not connect
	}
	return conn, err
}

// buffers are an httputil.BufferPool.
type buffers struct{ pool sync.Pool }

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, copyBuffer)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(p []byte) { b.pool.Put(&p) }
