package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// Start starts the command. With an agent that can tell (capability
// "exec.extended") it returns once the command runs, and a StartError if it
// could not be started; with an older one it returns once the request is sent,
// and Wait tells.
func (c *Cmd) Start() error {
	if err := c.check(); err != nil {
		return err
	}
	for _, ctx := range []context.Context{c.client.life, c.ctx} {
		if err := context.Cause(ctx); err != nil {
			return err
		}
	}
	info, err := c.client.Info(c.ctx)
	if err != nil {
		return err
	}
	req, err := c.request(&info)
	if err != nil {
		return err
	}
	if c.began != nil {
		if req.EntropySeed, err = c.began(); err != nil {
			return err
		}
		defer c.launched()
	}
	s, err := c.open(req)
	if err != nil {
		if c.ended != nil {
			c.ended()
		}
		return c.client.explain(err)
	}
	c.session = s
	go s.read(c.client.opts.RPCTimeout)
	if req.Started {
		if err := s.awaitStart(c.client.opts.RPCTimeout); err != nil {
			return err
		}
		if c.client.opts.DialAhead {
			c.client.refillSpare()
		}
	} else if c.TTY && c.Size != (WindowSize{}) {
		// An agent that does not know cols and rows still knows resize.
		_ = s.control(wire.InputFrame{Type: wire.FrameTypeResize, Cols: c.Size.Cols, Rows: c.Size.Rows})
	}
	s.setTimeout(first(c.Timeout, c.deadline))
	if c.Stdin != nil {
		s.startStdin(c.Stdin)
	} else if c.feed == nil && !req.NoStdin && c.attach == "" {
		_ = s.control(wire.InputFrame{Type: wire.FrameTypeEOF})
	}
	return nil
}

// check refuses a Cmd that cannot be started as it stands.
func (c *Cmd) check() error {
	switch {
	case c.client == nil || c.ctx == nil:
		return errors.New("cannot start command: it was not made by Command or Attach")
	case c.session != nil:
		return errors.New("cannot start command: already started")
	case c.attach != "":
		if len(c.Args) > 0 || c.Dir != "" || len(c.Env) > 0 || c.User != "" || c.TTY || c.Timeout != 0 || c.ID != "" {
			return errors.New("cannot attach: fields that describe a command are set")
		}
	case len(c.Args) == 0 || strings.TrimSpace(c.Args[0]) == "":
		return errors.New("cannot start command: it has no name")
	case c.Timeout < 0:
		return fmt.Errorf("cannot start command: timeout of %v is negative", c.Timeout)
	}
	for _, id := range []string{c.ID, c.attach} {
		if id != "" && !wire.ValidID(id) {
			return fmt.Errorf("cannot start command: id %.80q has not 1 to %d characters of A-Z a-z 0-9 . _ -", id, wire.MaxID)
		}
	}
	for _, s := range slices.Concat(c.Args, c.Env, []string{c.Dir, c.User}) {
		if strings.IndexByte(s, 0) >= 0 {
			return fmt.Errorf("cannot start command: %.80q holds a NUL byte", s) // T10
		}
	}
	return nil
}

// request builds the first line, with no more extensions than the agent knows.
func (c *Cmd) request(info *Info) (*wire.ExecRequest, error) {
	extended := info.Has(wire.CapExecExtended)
	for _, need := range []struct {
		wanted     bool
		capability string
		what       string
	}{
		{c.User != "", wire.CapExecExtended, "running a command as another user"},
		{c.Detach, wire.CapExecDetach, "detached commands"},
	} {
		if need.wanted && !info.Has(need.capability) {
			return nil, &UnsupportedError{What: need.what}
		}
	}
	req := &wire.ExecRequest{Started: extended}
	if info.Has(wire.CapExecBinary) {
		req.Framing = wire.FramingBinary
	}
	if c.attach != "" {
		req.Attach, req.ReplayFrom = c.attach, c.replay
		return req, nil
	}
	req.Command, req.Dir, req.TTY = c.Args, c.Dir, c.TTY
	req.Env = slices.Concat(c.env, c.Env)
	req.Detach, req.ID = c.Detach, c.ID
	if extended {
		req.User = c.User
		req.TimeoutMS = millis(first(c.Timeout, c.deadline))
		req.NoStdin = c.Stdin == nil && c.feed == nil && !c.TTY
		req.Cols, req.Rows = c.Size.Cols, c.Size.Rows
	}
	return req, nil
}

// open dials the exec port and sends the request.
func (c *Cmd) open(req *wire.ExecRequest) (*session, error) {
	line, err := appendLine(nil, req)
	if err != nil {
		return nil, &JSONError{err}
	}
	if len(line) > wire.MaxExecLine {
		return nil, &JSONError{fmt.Errorf("command of %d bytes, at most %d are allowed", len(line), wire.MaxExecLine)}
	}
	s := &session{
		cmd: c, client: c.client, oomKills: c.client.oomKills(),
		binary: req.Framing == wire.FramingBinary, extended: req.Started,
		begun: make(chan struct{}), drained: make(chan struct{}), done: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancelCause(c.ctx)
	s.unbind = context.AfterFunc(c.client.life, func() { s.cancel(context.Cause(c.client.life)) })
	if s.conn, err = c.client.dialExec(s.ctx); err != nil {
		s.unbind()
		s.cancel(err)
		return nil, err
	}
	s.hangup = context.AfterFunc(s.ctx, func() {
		_ = s.conn.Close()
		for _, p := range c.pipes {
			p.end(context.Cause(s.ctx))
		}
	})
	if c.feed != nil {
		c.feed.session = s
	}
	c.client.log.LogAttrs(s.ctx, slog.LevelDebug, "starting command", guestAttr("command", strings.Join(c.Args, " ")), slog.String("attach", c.attach))
	if err := s.send(line, c.client.opts.RPCTimeout); err != nil {
		s.unbind()
		s.cancel(err)
		return nil, err
	}
	return s, nil
}

// send writes the request line.
func (s *session) send(line []byte, timeout time.Duration) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(timeout)); err != nil {
		return &IOError{err}
	}
	if _, err := s.conn.Write(line); err != nil {
		switch {
		case s.ctx.Err() != nil:
			return context.Cause(s.ctx)
		case isTimeout(err):
			return &RPCError{Code: codeLocal, Message: msgResponseTimeout}
		default:
			return &IOError{fmt.Errorf("cannot send command: %w", err)}
		}
	}
	if err := s.conn.SetWriteDeadline(time.Time{}); err != nil {
		return &IOError{err}
	}
	return nil
}

// awaitStart waits for the started frame, or for what came instead.
func (s *session) awaitStart(timeout time.Duration) error {
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-s.begun:
		return nil
	case <-s.done:
		select {
		case <-s.begun: // and ended already
			return nil
		default:
		}
		return s.startError()
	case <-late.C:
		s.cancel(&RPCError{Code: codeLocal, Message: msgResponseTimeout})
		<-s.done
		return s.err
	}
}

// startError is the error of a command that ended before it had started.
func (s *session) startError() error {
	if exit, ok := errors.AsType[*ExitError](s.err); ok {
		return &StartError{Message: first(exit.Message, exit.Error())}
	}
	if s.err == nil {
		return &JSONError{errors.New("command ended before it started")}
	}
	return s.err
}

// setTimeout has the host give a command up a little after the guest should
// have ended it.
func (s *session) setTimeout(d time.Duration) {
	if d <= 0 {
		return
	}
	grace := timeoutGrace
	if !s.extended {
		grace = 0 // the agent was not told
	}
	go func() {
		if s.client.clock.sleep(s.ctx, d+grace) == nil {
			s.cancel(&TimeoutError{Timeout: d})
		}
	}()
}
