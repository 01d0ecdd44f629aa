package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

// The schedule of attempts: the first at once, then after these pauses. The last
// one, seed 000's interval, repeats until the time to connect is over.
var connectPauses = []time.Duration{
	1 * time.Millisecond,
	2 * time.Millisecond,
	5 * time.Millisecond,
	10 * time.Millisecond,
	20 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond,
}

// firstAttempt bounds the first attempt; each later one may take twice as long
// as the one before. A guest that takes a connection and forgets it while it
// boots costs little, and one that is slow gets its answer through in the end.
const firstAttempt = time.Second

// Connect reaches the agent behind d and waits until it has answered a ping. It
// tries again until ClientOptions.ConnectTimeout is over, which is an
// AgentTimeoutError that wraps why the last attempt failed. It gives up at once
// when the machine is gone (a VMError), when an agent is there and answers with
// an error (RPCError) or with something else than JSON-RPC (JSONError), and when
// ctx ends. ctx bounds the call alone.
func Connect(ctx context.Context, d Dialer, opts *ClientOptions) (*AgentClient, error) {
	c := newClient(d, opts)
	if err := c.connect(ctx); err != nil {
		c.shutdown(errClientClosed)
		return nil, err
	}
	return c, nil
}

var errConnectTimeout = errors.New("time to connect is over")

func (c *AgentClient) connect(ctx context.Context) error {
	start := time.Now()
	c.log.LogAttrs(ctx, slog.LevelDebug, "connecting to agent", slog.String("dialer", fmt.Sprintf("%T", c.dialer)))
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.ConnectTimeout, errConnectTimeout)
	defer cancel()
	var last error
	for attempt := 1; ; attempt++ {
		err := c.attempt(ctx, attempt)
		if err == nil {
			c.log.LogAttrs(ctx, slog.LevelInfo, "connected to agent", elapsed(start), slog.Int("attempts", attempt))
			return nil
		}
		if ctx.Err() == nil && !worthRetry(err) {
			return err
		}
		if ctx.Err() == nil {
			if last == nil || !isTimeout(err) { // the attempt that time cuts short says least
				last = err
			}
			c.log.LogAttrs(ctx, LevelTrace, "agent not reached yet", elapsed(start), slog.Int("attempt", attempt), guestAttr("error", err.Error()))
			select {
			case <-time.After(connectPauses[min(attempt, len(connectPauses))-1]):
				continue
			case <-ctx.Done():
			}
		} else if last == nil {
			last = err
		}
		if !errors.Is(context.Cause(ctx), errConnectTimeout) {
			return fmt.Errorf("cannot connect to the agent: %w", context.Cause(ctx))
		}
		c.log.LogAttrs(ctx, slog.LevelWarn, "agent did not answer in time", elapsed(start), slog.Int("attempts", attempt))
		return &AgentTimeoutError{Timeout: c.opts.ConnectTimeout, Attempts: attempt, Last: last}
	}
}

func elapsed(start time.Time) slog.Attr { return slog.Duration("elapsed", time.Since(start)) }

// attempt makes one connection and has it answer a ping.
func (c *AgentClient) attempt(ctx context.Context, n int) error {
	limit := firstAttempt << min(n-1, 10)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errDialTimeout)
	defer cancel()
	if c.opts.ExecOnly {
		conn, err := c.dial(ctx, wire.PortExec)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	err := c.Ping(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errDialTimeout) {
		return &ConnectionError{errDialTimeout}
	}
	return err
}

// worthRetry reports whether an attempt that failed with err may succeed later.
func worthRetry(err error) bool {
	var rpc *RPCError
	switch {
	case errors.Is(err, vm.ErrGone), errors.Is(err, ErrJSON):
		return false
	case errors.As(err, &rpc):
		return rpc.Timeout()
	default:
		return true
	}
}
