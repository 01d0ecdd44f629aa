package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"

	"github.com/bouvet-run/bouvet/wire"
)

// A method answers requests. Exactly one of call and stream is set.
type method struct {
	// urgent methods are answered at once, before requests that came earlier.
	// They must not block.
	urgent bool
	// changes says that the method starts something or changes files, which a guest
	// that is frozen for a snapshot refuses.
	changes bool
	// call returns the result, or an error: a *wire.RPCError as it is, any other
	// as an internal error with its text.
	call func(ctx context.Context, s *Server, params json.RawMessage) (any, error)
	// stream prepares what takes the connection over after an empty result.
	stream func(ctx context.Context, s *Server, params json.RawMessage) (stream, error)
}

// A stream owns its connection until it returns. What the peer sends is to be
// read from r, not from conn. It is called exactly once, whatever happened to
// the connection before, and lets go what was prepared.
type stream func(ctx context.Context, conn net.Conn, r io.Reader)

var methods = map[string]method{
	wire.MethodPing:      {urgent: true, call: callPing},
	wire.MethodInfo:      {urgent: true, call: callInfo},
	wire.MethodProcesses: {urgent: true, call: callProcesses},
	wire.MethodSignal:    {urgent: true, call: callSignal},

	wire.MethodExec:      {changes: true, call: callExec},
	wire.MethodExecCode:  {changes: true, call: callExecCode},
	wire.MethodReadFile:  {call: callReadFile},
	wire.MethodWriteFile: {changes: true, call: callWriteFile},
	wire.MethodListDir:   {call: callListDir},
	wire.MethodStat:      {call: callStat},
	wire.MethodMakeDir:   {changes: true, call: callMakeDir},
	wire.MethodMove:      {changes: true, call: callMove},
	wire.MethodRemove:    {changes: true, call: callRemove},

	wire.MethodFreeze: {call: callFreeze},
	wire.MethodThaw:   {call: callThaw},

	wire.MethodDownload: {stream: prepareDownload},
	wire.MethodUpload:   {changes: true, stream: prepareUpload},
	wire.MethodForward:  {stream: prepareForward},
	wire.MethodWatch:    {stream: prepareWatch},
}

// serve answers one request. It reports whether a stream took the connection
// over, and an error when the connection can no longer be written to.
func (c *rpcConn) serve(ctx context.Context, req request) (upgraded bool, err error) {
	if req.refusal != nil {
		return false, c.reply(req.ID, nil, req.refusal)
	}
	m, known := methods[req.Method]
	if !known {
		return false, c.reply(req.ID, nil, &wire.RPCError{
			Code: wire.CodeMethodNotFound, Message: "method not found: " + shorten(req.Method, maxShownMethod),
		})
	}
	c.s.log.Debug("request", slog.String("method", req.Method), slog.Uint64("id", req.ID))
	defer func() {
		if v := recover(); v != nil {
			c.s.log.Error("request ended by a defect of the agent", slog.String("method", req.Method), slog.Any("panic", v), slog.String("stack", stack()))
			err = errors.Join(errDefect, c.reply(req.ID, nil, &wire.RPCError{Code: wire.CodeInternal, Message: "internal error"}))
		}
	}()
	if m.changes && c.s.frozen() {
		return false, c.reply(req.ID, nil, rpcError(errFrozen))
	}
	if m.stream != nil {
		run, err := m.stream(ctx, c.s, req.Params)
		if err != nil {
			return false, c.reply(req.ID, nil, rpcError(err))
		}
		_ = c.reply(req.ID, wire.Empty{}, nil) // the stream finds out itself
		run(ctx, c.conn, c.lines)
		return true, nil
	}
	result, err := m.call(ctx, c.s, req.Params)
	if err != nil {
		return false, c.reply(req.ID, nil, rpcError(err))
	}
	return false, c.reply(req.ID, result, nil)
}

var errDefect = errors.New("defect")

func rpcError(err error) *wire.RPCError {
	if e, ok := errors.AsType[*wire.RPCError](err); ok {
		return e
	}
	return &wire.RPCError{Code: wire.CodeInternal, Message: err.Error()}
}

// answer is a response as it is written: the result is encoded once.
type answer struct {
	JSONRPC string         `json:"jsonrpc"`
	ID      uint64         `json:"id"`
	Result  any            `json:"result,omitempty"`
	Error   *wire.RPCError `json:"error,omitempty"`
}

// A longResult writes its own response, piece by piece, where the whole would
// take too much memory.
type longResult interface {
	writeAnswer(w io.Writer, id uint64) error
}

// reply writes one response. A peer that does not read holds up only its own
// connection.
func (c *rpcConn) reply(id uint64, result any, e *wire.RPCError) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if long, ok := result.(longResult); ok {
		return long.writeAnswer(c.conn, id)
	}
	line, err := wire.AppendLine(nil, answer{JSONRPC: wire.Version, ID: id, Result: result, Error: e})
	if err == nil && len(line) > wire.MaxRPCLine {
		err = errors.New("the answer is larger than a line may be")
	}
	if err != nil {
		line, err = wire.AppendLine(nil, answer{JSONRPC: wire.Version, ID: id, Error: rpcError(err)})
		if err != nil {
			return err
		}
	}
	_, err = c.conn.Write(line)
	return err
}

func callPing(context.Context, *Server, json.RawMessage) (any, error) {
	return wire.PingResult{Pong: true}, nil
}

func callInfo(_ context.Context, s *Server, _ json.RawMessage) (any, error) {
	return s.info(), nil
}
