package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// serveExec serves one connection to the exec port: one command, from its request
// line, which is the next of r, to its exit frame (seed 001). It closes conn.
func (s *Server) serveExec(ctx context.Context, conn net.Conn, r *wire.LineReader) {
	defer func() { _ = conn.Close() }()
	req, err := readExecRequest(r)
	if errors.Is(err, errNoRequest) {
		s.log.Debug("exec connection ended without a request", slog.Any("error", err))
		return
	}
	out := &execWriter{conn: conn, binary: req.Framing == wire.FramingBinary}
	var x *execSession
	if err == nil {
		x, err = s.newExec(conn, r, out, req)
	}
	if err != nil {
		s.log.Debug("exec refused", slog.Any("error", err))
		if errors.Is(err, proc.ErrFrozen) {
			err = errors.New(frozenText)
		}
		out.refuse(err)
		lingerUnread(conn)
		return
	}
	x.run(ctx)
}

var errNoRequest = errors.New("no request")

// readExecRequest reads the request line. Of one that cannot be accepted it
// returns the framing nevertheless, if that can be read, because the refusal has
// to be in it.
func readExecRequest(r *wire.LineReader) (wire.ExecRequest, error) {
	for {
		line, err := r.ReadLine()
		switch {
		case errors.Is(err, wire.ErrLineTooLong), errors.Is(err, errBusy):
			return wire.ExecRequest{}, err
		case errors.Is(err, io.ErrUnexpectedEOF):
			return wire.ExecRequest{}, errors.New("request line has no end")
		case err != nil:
			return wire.ExecRequest{}, fmt.Errorf("%w: %w", errNoRequest, err)
		case isBlank(line):
			continue
		}
		req, err := wire.DecodeExecRequest(line)
		if err != nil {
			var f struct {
				Framing string `json:"framing"`
			}
			_ = wire.Decode(line, &f)
			return wire.ExecRequest{Framing: f.Framing}, err
		}
		return req, nil
	}
}

// newExec starts what the request asks for, or joins it.
func (s *Server) newExec(conn net.Conn, r *wire.LineReader, out *execWriter, req wire.ExecRequest) (*execSession, error) {
	if len(req.EntropySeed) > 0 {
		if err := addEntropy(req.EntropySeed); err != nil {
			s.log.Warn("cannot credit entropy", slog.Any("error", err))
		}
	}
	x := &execSession{log: s.log, conn: conn, in: r, out: out, req: req}
	if req.Attach != "" {
		x.p = s.proc.Get(req.Attach)
		if x.p == nil || !x.p.Detached() {
			return nil, fmt.Errorf("no detached process has id %q", shorten(req.Attach, proc.MaxID))
		}
		x.sub = x.p.Hub().Subscribe(req.ReplayFrom)
		return x, nil
	}
	spec := proc.Spec{
		Args: req.Command, Dir: req.Dir, Env: req.Env, User: req.User,
		TTY: req.TTY, Cols: req.Cols, Rows: req.Rows, Stdin: !req.NoStdin,
		Timeout:  time.Duration(min(req.TimeoutMS, maxTimeoutMS)) * time.Millisecond,
		Detached: req.Detach, ID: req.ID,
	}
	if out.binary {
		spec.PipeSize = maxBinaryChunk
	}
	p, err := s.proc.Start(spec)
	if err != nil {
		return nil, err
	}
	x.p = p
	if p.Detached() {
		x.sub = p.Hub().First()
	}
	if req.NoStdin {
		p.Feed().End() // of a terminal
	}
	return x, nil
}
