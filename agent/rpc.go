package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"

	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// An rpcConn is one connection that speaks JSON-RPC. Its reader reads ahead, so
// that the end of the connection is seen, and ends the command that runs for it,
// and so that a ping is answered while a command runs. Its worker answers all
// else, in order.
type rpcConn struct {
	s     *Server
	conn  net.Conn
	in    *opener
	lines *wire.LineReader
	queue *queue

	writing sync.Mutex // held while a line is written
}

// serveRPC serves JSON-RPC until the connection ends.
func (s *Server) serveRPC(ctx context.Context, conn net.Conn, in *opener) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &rpcConn{s: s, conn: conn, in: in, lines: wire.NewLineReader(in, wire.MaxRPCLine, s.large), queue: newQueue()}
	defer c.lines.Close()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer func() { _ = conn.Close() }() // ends the reader
	defer c.queue.end()
	reader.Go(func() {
		defer s.logPanic()
		defer c.queue.end()
		if gone := c.read(ctx); gone {
			cancel()
		}
	})
	for {
		req, ok := c.queue.next()
		if !ok {
			return
		}
		upgraded, err := c.serve(ctx, req)
		if req.done != nil {
			req.done <- upgraded
		}
		if upgraded || err != nil {
			return
		}
	}
}

// read reads requests until the connection, or its being JSON-RPC, ends. It
// reports whether the peer is gone, and with it the use of what runs for it.
func (c *rpcConn) read(ctx context.Context) (gone bool) {
	for {
		c.in.beginLine(c.lines.Buffered() > 0)
		line, err := c.lines.ReadLine()
		c.in.endLine()
		if err != nil {
			return c.readFailed(err)
		}
		if isBlank(line) {
			continue
		}
		req := request{size: len(line)}
		req.Request, req.refusal = wire.DecodeRequest(line)
		m, known := methods[req.Method]
		if known && m.urgent && req.refusal == nil {
			if _, err := c.serve(ctx, req); err != nil {
				return true
			}
			continue
		}
		if known && m.stream != nil || len(line) > wire.LargeLine {
			// A stream takes the connection over, and a large line's memory is not
			// given back before it is answered.
			req.done = make(chan bool, 1)
		}
		if !c.queue.push(req) {
			return false
		}
		if req.done == nil {
			continue
		}
		req.Request = wire.Request{}
		select {
		case upgraded := <-req.done:
			if upgraded {
				return false
			}
		case <-ctx.Done():
			return false
		}
	}
}

// readFailed deals with the end of the lines.
func (c *rpcConn) readFailed(err error) (gone bool) {
	switch {
	case errors.Is(err, wire.ErrLineTooLong):
		c.s.log.Warn("request line too long")
		c.refuseAndEnd(&wire.RPCError{Code: wire.CodeInvalidRequest, Message: "invalid request: " + err.Error()})
		return false
	case errors.Is(err, errBusy):
		c.refuseAndEnd(&wire.RPCError{Code: wire.CodeInternal, Message: err.Error()})
		return false
	case errors.Is(err, io.EOF):
		// A peer that only finished sending still waits for its answers.
		c.queue.end()
		return vsock.AwaitHangup(c.conn)
	default:
		c.s.log.Debug("connection broke", slog.Any("error", err))
		return true
	}
}

// refuseAndEnd queues the last answer of a connection that cannot be read on.
func (c *rpcConn) refuseAndEnd(e *wire.RPCError) {
	c.queue.push(request{refusal: e})
	c.queue.end()
}

func isBlank(line []byte) bool {
	for _, b := range line {
		if b != ' ' && b != '\t' && b != '\r' {
			return false
		}
	}
	return true
}
