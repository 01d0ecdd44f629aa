package bouvet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

const (
	codeLocal          = wire.CodeLocal
	msgResponseTimeout = "response timeout"
)

// Bounds of a reply line in bytes, by method.
const (
	maxSmallReply = 64 << 10
	// Two streams of wire.MaxOutput, six bytes for each in the worst escaping.
	maxExecReply      = 2*6*(wire.MaxOutput+len(wire.TruncatedSuffix)) + maxSmallReply
	maxListReply      = 32 << 20
	maxProcessesReply = 16 << 20
)

// A call is one request and what its reply may be.
type call struct {
	method string
	params any
	// bound is the longest reply, in bytes; maxSmallReply when 0.
	bound int
	// timeout is how long the reply may take; the client's when 0.
	timeout time.Duration
	// idempotent calls may be sent again when a connection turns out dead.
	idempotent bool
	// bulk calls become streams that carry much.
	bulk bool
	// extension marks a method that older agents do not know.
	extension bool
}

// Call sends one request and decodes its result, which may be nil to drop it.
// Strict rules hold for the answer: keys match exactly and none comes twice. The
// reply may be as long as the protocol allows.
func (c *AgentClient) Call(ctx context.Context, method string, params, result any) error {
	return c.call(ctx, call{method: method, params: params, bound: wire.MaxRPCLine}, result)
}

func (c *AgentClient) call(ctx context.Context, k call, result any) error {
	if err := c.try(ctx, k, result); err != nil {
		return c.explain(err)
	}
	return nil
}

func (c *AgentClient) try(ctx context.Context, k call, result any) error {
	ctx, cancel := c.bind(ctx)
	defer cancel()
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()

	conn, raw, err := c.exchange(ctx, &k)
	if err != nil {
		return err
	}
	if result != nil {
		err = wire.Decode(raw, result)
	}
	if err != nil {
		conn.discard()
		return &JSONError{fmt.Errorf("result of %s: %w", k.method, err)}
	}
	c.release(conn, len(raw))
	return nil
}

// exchange sends k and returns its raw result with the connection, which the
// caller owns. The result is valid until the connection is used again.
func (c *AgentClient) exchange(ctx context.Context, k *call) (*rpcConn, json.RawMessage, error) {
	var conn *rpcConn
	var reused bool
	var err error
	if k.bulk {
		conn = c.acquireBulk(ctx)
	}
	if conn == nil {
		if conn, reused, err = c.acquire(ctx, false); err != nil {
			return nil, nil, err
		}
	}
	id := c.nextID.Add(1)
	line, err := encodeRequest(id, k)
	if err != nil {
		c.release(conn, 0)
		return nil, nil, err
	}
	method := slog.String("method", k.method)
	idAttr := slog.Uint64("id", id)
	c.log.LogAttrs(ctx, slog.LevelDebug, "rpc request", method, idAttr)
	c.log.LogAttrs(ctx, LevelTrace, "rpc request body", method, idAttr, slog.Any("body", lineText(line)))

	for {
		resp, sent, err := c.roundTrip(ctx, conn, k, id, line)
		if err == nil {
			if resp.Error == nil {
				c.log.LogAttrs(ctx, slog.LevelDebug, "rpc success", method, idAttr)
				return conn, resp.Result, nil
			}
			return nil, nil, c.answered(ctx, conn, k, id, resp)
		}
		conn.discard()
		if !reused || sent && !k.idempotent || ctx.Err() != nil || !errors.Is(err, ErrIO) {
			return nil, nil, err
		}
		// The agent closed it while it lay idle. The others are no better.
		c.dropIdle()
		if conn, reused, err = c.acquire(ctx, true); err != nil {
			return nil, nil, err
		}
	}
}

// answered handles a reply that is an error.
func (c *AgentClient) answered(ctx context.Context, conn *rpcConn, k *call, id uint64, resp wire.Response) error {
	message := capText(resp.Error.Message)
	c.log.LogAttrs(ctx, slog.LevelDebug, "rpc error", slog.String("method", k.method), slog.Uint64("id", id),
		slog.Int("code", int(resp.Error.Code)), guestAttr("message", message))
	if resp.ID == id {
		c.release(conn, len(resp.Error.Message))
	} else {
		conn.discard() // the agent could not read the request; it may be out of step
	}
	if k.extension && resp.Error.Code == wire.CodeMethodNotFound {
		return &UnsupportedError{What: k.method}
	}
	return &RPCError{Code: resp.Error.Code, Message: message}
}

// encodeRequest appends the parameters where they go: a wire.Request would have
// them encoded twice, and they may be 60 MiB.
func encodeRequest(id uint64, k *call) ([]byte, error) {
	method, err := json.Marshal(k.method)
	if err != nil {
		return nil, &JSONError{fmt.Errorf("request %q: %w", k.method, err)}
	}
	line := fmt.Appendf(nil, `{"jsonrpc":%q,"id":%d,"method":%s,"params":`, wire.Version, id, method)
	if k.params == nil {
		line = append(line, "{}"...)
	} else if line, err = appendLine(line, k.params); err != nil {
		return nil, &JSONError{fmt.Errorf("parameters of %s: %w", k.method, err)}
	}
	line = append(bytes.TrimSuffix(line, []byte("\n")), "}\n"...)
	if len(line) > wire.MaxRPCLine {
		return nil, &JSONError{fmt.Errorf("request %s: %d bytes, at most %d are allowed", k.method, len(line), wire.MaxRPCLine)}
	}
	return line, nil
}

// roundTrip writes one request and reads its reply. sent reports whether the
// agent may have seen the whole request. The errors are those of seed 000's
// table.
func (c *AgentClient) roundTrip(ctx context.Context, conn *rpcConn, k *call, id uint64, line []byte) (resp wire.Response, sent bool, err error) {
	stop := context.AfterFunc(ctx, conn.close)
	defer func() {
		// Not stopped means that ctx ended and conn is closed or about to be.
		if !stop() {
			err = fmt.Errorf("call of %s was given up: %w", k.method, context.Cause(ctx))
		}
	}()
	timeout := first(k.timeout, c.opts.RPCTimeout)
	conn.gate.until = time.Now().Add(timeout)
	if err := conn.SetDeadline(conn.gate.until); err != nil {
		return resp, false, &IOError{err}
	}
	if _, err := conn.Write(line); err != nil {
		return resp, false, c.ioError(ctx, k, id, timeout, err)
	}
	conn.lines.SetMax(first(k.bound, maxSmallReply))
	reply, err := conn.lines.ReadLine()
	if err != nil {
		return resp, true, c.ioError(ctx, k, id, timeout, err)
	}
	c.log.LogAttrs(ctx, LevelTrace, "rpc response body", slog.String("method", k.method), slog.Uint64("id", id), slog.Any("body", lineText(reply)))
	resp, err = wire.DecodeResponse(reply)
	switch {
	case errors.Is(err, wire.ErrNoResult) && resp.ID == id:
		return resp, true, &RPCError{Code: codeLocal, Message: wire.ErrNoResult.Error()}
	case err != nil && !errors.Is(err, wire.ErrNoResult):
		return resp, true, &JSONError{fmt.Errorf("reply to %s: %w", k.method, err)}
	case resp.ID == id, resp.ID == 0 && resp.Error != nil:
		return resp, true, nil
	default:
		return resp, true, &JSONError{fmt.Errorf("reply to %s carries id %d, want %d", k.method, resp.ID, id)}
	}
}

// ioError gives a failed read or write its kind.
func (c *AgentClient) ioError(ctx context.Context, k *call, id uint64, timeout time.Duration, err error) error {
	switch {
	case errors.Is(err, wire.ErrLineTooLong):
		return &JSONError{fmt.Errorf("reply to %s: %w", k.method, err)}
	case isTimeout(err):
		c.log.LogAttrs(ctx, slog.LevelWarn, "rpc timeout", slog.String("method", k.method), slog.Uint64("id", id), slog.Duration("timeout", timeout))
		return &RPCError{Code: codeLocal, Message: msgResponseTimeout}
	}
	return &IOError{fmt.Errorf("connection broke in a call of %s: %w", k.method, brokenOff(err))}
}

// lineText is a whole message for the log.
type lineText []byte

// LogValue implements slog.LogValuer.
func (t lineText) LogValue() slog.Value {
	return guestText(t[:min(len(t), maxGuestText+1)]).LogValue()
}
