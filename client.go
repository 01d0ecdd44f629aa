package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

// Timeouts of seed 000.
const (
	// DefaultConnectTimeout bounds a Connect, all its attempts together.
	DefaultConnectTimeout = 10 * time.Second
	// DefaultRPCTimeout bounds one call to the agent.
	DefaultRPCTimeout = 30 * time.Second
)

// LevelTrace is the level of whole requests and responses in the log.
const LevelTrace = slog.LevelDebug - 4

const (
	// maxIdle is how many connections are kept for the next call.
	maxIdle = 4
	// maxConns is how many calls of one client are under way at once; more wait.
	maxConns = 256
	// maxLargeReplies is how many replies over wire.LargeLine bytes one client
	// holds at once, so that a guest cannot take its host's memory with many.
	maxLargeReplies = 2
)

// Dialer opens streams to ports of an agent. vm.Machine and vsock.Hybrid are
// Dialers.
type Dialer interface {
	// Dial opens a stream to port. ctx bounds the handshake alone. An error that
	// wraps vm.ErrGone says that no attempt can succeed any more.
	Dial(ctx context.Context, port uint32) (net.Conn, error)
}

// ClientOptions are the options of Connect. The zero value, and nil, are useful.
type ClientOptions struct {
	// ConnectTimeout bounds Connect and later dials; 10 s when 0.
	ConnectTimeout time.Duration
	// RPCTimeout bounds each call; 30 s when 0. A call whose command has a
	// timeout of its own may take that and a little more.
	RPCTimeout time.Duration
	// ExecOnly is for agents that serve the exec port alone (cleanroom's):
	// connected then means that this port is acknowledged, and Info is empty.
	ExecOnly bool
	// Serial makes calls one after the other, on one connection. It is for agents
	// that serve one connection at a time (bouvet's first, seed 002): to those a
	// second one looks like an agent that does not answer.
	Serial bool
	// DialAhead keeps a connection to the exec port ready for the next command
	// while one runs. An agent must be able to serve several at once.
	DialAhead bool
	// Name says in the log which agent this is: a path, an ID.
	Name string
	// Log receives the events of seed 000's table; nil means none.
	Log *slog.Logger
}

// AgentClient talks to the agent in one guest. Its methods are safe for
// concurrent use: each call has a connection of its own for as long as it takes,
// and connections are kept for later calls. A call that is cancelled or runs out
// of time takes its connection with it, which makes the agent end what it was
// doing, and its answer, should there be one, reaches nobody.
type AgentClient struct {
	dialer Dialer
	opts   ClientOptions
	log    *slog.Logger

	nextID atomic.Uint64
	slots  chan struct{} // one for each call under way
	large  chan struct{} // one for each large reply held
	info   infoCache
	clock  *stopwatch // stands still while a Sandbox is paused

	// explain says what a broken stream means; a Sandbox knows more than we do. Set
	// before the client is shared.
	explain func(error) error
	// oomKills is how many processes of the guest the host has killed for memory. Set
	// as explain is.
	oomKills func() int

	life context.Context // ends with Close; its cause is what calls return
	end  context.CancelCauseFunc

	mu   sync.Mutex
	idle []*rpcConn // guarded by mu; the most recently used last

	spare    net.Conn // dialled ahead for the next command; guarded by mu
	dialling bool     // a spare is on its way; guarded by mu
}

// errClientClosed is what calls return after Close.
var errClientClosed = fmt.Errorf("agent client is closed: %w", net.ErrClosed)

func newClient(d Dialer, opts *ClientOptions) *AgentClient {
	c := &AgentClient{
		dialer: d,
		slots:  make(chan struct{}, maxConns),
		large:  make(chan struct{}, maxLargeReplies),
		clock:  newStopwatch(),

		explain:  func(err error) error { return err },
		oomKills: func() int { return 0 },
	}
	if opts != nil {
		c.opts = *opts
	}
	c.opts.ConnectTimeout = first(c.opts.ConnectTimeout, DefaultConnectTimeout)
	c.opts.RPCTimeout = first(c.opts.RPCTimeout, DefaultRPCTimeout)
	c.log = c.opts.Log
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.opts.Name != "" {
		c.log = c.log.With(slog.String("agent", c.opts.Name))
	}
	if c.opts.Serial {
		c.slots = make(chan struct{}, 1)
	}
	c.info.lock = make(chan struct{}, 1)
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

// Close ends every call, command and stream of the client and closes its
// connections. It is idempotent.
func (c *AgentClient) Close() error {
	c.shutdown(errClientClosed)
	return nil
}

// shutdown is Close, with the error that calls are to return.
func (c *AgentClient) shutdown(cause error) {
	c.end(cause)
	c.dropIdle()
}

func (c *AgentClient) dropIdle() {
	c.mu.Lock()
	idle, spare := c.idle, c.spare
	c.idle, c.spare = nil, nil
	c.mu.Unlock()
	if spare != nil {
		_ = spare.Close()
	}
	for _, conn := range idle {
		conn.close()
	}
}

// bind returns a context that ends with ctx or with the client. Its cause tells
// which.
func (c *AgentClient) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if c.life.Err() != nil {
		cancel(context.Cause(c.life)) // AfterFunc would do it, but not before we return
	}
	stop := context.AfterFunc(c.life, func() { cancel(context.Cause(c.life)) })
	return ctx, func() {
		stop()
		cancel(context.Canceled)
	}
}

// dial opens a stream to port, within the time to connect.
func (c *AgentClient) dial(ctx context.Context, port uint32) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.ConnectTimeout, errDialTimeout)
	defer cancel()
	conn, err := c.dialer.Dial(ctx, port)
	if err == nil {
		return conn, nil
	}
	return nil, c.dialError(ctx, err)
}

var errDialTimeout = errors.New("no answer in the time to connect")

// dialError gives a Dialer's error its kind.
func (c *AgentClient) dialError(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, vm.ErrGone):
		return &VMError{err}
	case ctx.Err() == nil, errors.Is(context.Cause(ctx), errDialTimeout):
		return &ConnectionError{err}
	default:
		return fmt.Errorf("cannot connect to the agent: %w", context.Cause(ctx))
	}
}

// Ping asks the agent for a sign of life.
func (c *AgentClient) Ping(ctx context.Context) error {
	var r wire.PingResult
	if err := c.call(ctx, call{method: wire.MethodPing, idempotent: true}, &r); err != nil {
		return err
	}
	if !r.Pong {
		return &JSONError{errors.New("ping was not answered with a pong")}
	}
	return nil
}
