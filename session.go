package bouvet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// session is a command that was started: its connection and the goroutines that
// serve it.
type session struct {
	cmd      *Cmd
	client   *AgentClient
	conn     net.Conn
	binary   bool // framing both ways
	extended bool // started frame, signals
	oomKills int  // of the machine before the command

	ctx    context.Context // ends with the command's, the client's, or cancel
	cancel context.CancelCauseFunc
	unbind func() bool // from the client's life
	hangup func() bool // stops the closing of conn at the end of ctx

	begun   chan struct{} // closed after started is set
	started wire.StreamFrame
	writes  atomic.Uint64 // begun and returned, of Stdout and Stderr: odd within one
	drained chan struct{} // closed when there will be no more of them
	done    chan struct{} // closed after err is set
	err     error         // what Wait returns

	sendMu  sync.Mutex
	sendBuf []byte // guarded by sendMu
	sentEOF bool   // guarded by sendMu

	stdinDone chan struct{} // closed when the stdin goroutine has ended; nil without one
	stdinErr  error         // why Stdin could not be read; guarded by sendMu
	interrupt func()        // interrupts a Read of Stdin
}

// read owns the receiving side, from the request to the end.
func (s *session) read(stall time.Duration) {
	err := s.receive(stall)
	close(s.drained)
	if cause := context.Cause(s.ctx); cause != nil && !isExit(err) {
		err = cause
	}
	s.unbind()
	s.hangup()
	s.cancel(err)
	_ = s.conn.Close()
	end := err
	if isExit(err) {
		end = io.EOF
	}
	for _, p := range s.cmd.pipes {
		p.end(end)
	}
	if !isExit(err) {
		err = s.client.explain(err)
	}
	s.err = err
	if s.cmd.ended != nil {
		s.cmd.ended()
	}
	close(s.done)
}

// isExit reports whether err is the regular end of a command.
func isExit(err error) bool {
	var exit *ExitError
	return err == nil || errors.As(err, &exit)
}

// receive handles frames until the exit frame.
func (s *session) receive(stall time.Duration) error {
	next := s.lineSource(stall)
	if s.binary {
		next = s.frameSource(stall)
	}
	for {
		f, err := next()
		if err != nil {
			return s.receiveError(err)
		}
		if end, err := s.handle(f); end || err != nil {
			return err
		}
	}
}

func (s *session) receiveError(err error) error {
	var broken *JSONError
	switch {
	case errors.As(err, &broken):
		err = broken.Err
		fallthrough
	case errors.Is(err, wire.ErrLineTooLong), errors.Is(err, wire.ErrBadFrame):
		return &JSONError{fmt.Errorf("stream of a command: %w", err)}
	case isTimeout(err):
		return &IOError{fmt.Errorf("agent stopped in the middle of a message: %w", err)}
	}
	return &IOError{fmt.Errorf("connection broke before the command's end: %w", brokenOff(err))}
}

// handle acts on one frame and reports whether it was the last.
func (s *session) handle(f wire.StreamFrame) (end bool, err error) {
	switch f.Type {
	case wire.FrameTypeStdout:
		return false, s.output(s.cmd.Stdout, f.Data)
	case wire.FrameTypeStderr:
		return false, s.output(s.cmd.Stderr, f.Data)
	case wire.FrameTypeStarted:
		if !s.extended || s.isBegun() || f.PID < 0 || f.ID != "" && !wire.ValidID(f.ID) {
			return false, &JSONError{errors.New("started frame out of place")}
		}
		s.started = f
		close(s.begun)
		return false, nil
	case wire.FrameTypeExit:
		return true, s.blame(exitOf(f))
	default:
		return false, &JSONError{fmt.Errorf("unknown stream frame type %.40q", f.Type)}
	}
}

// exited reports whether the command has come to a regular end.
func (s *session) exited() bool {
	select {
	case <-s.drained:
		<-s.done
		return isExit(s.err)
	default:
		return false
	}
}

func (s *session) isBegun() bool {
	select {
	case <-s.begun:
		return true
	default:
		return false
	}
}

// output hands bytes to the caller's writer. What comes before the started frame
// is the agent's own text on why there will be none; the exit frame repeats it.
func (s *session) output(w io.Writer, data []byte) error {
	if w == nil || len(data) == 0 || s.extended && !s.isBegun() {
		return nil
	}
	s.writes.Add(1)
	_, err := w.Write(data)
	s.writes.Add(1)
	if err != nil {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		return fmt.Errorf("cannot write command's output: %w", err)
	}
	return nil
}

// blame notes of a command that was killed that the host has killed for memory
// meanwhile, of which the agent cannot know.
func (s *session) blame(err error) error {
	const shellKilled = 128 + int(syscall.SIGKILL) // of a shell whose command was
	exit, ok := errors.AsType[*ExitError](err)
	if ok && !exit.TimedOut && (exit.Signal == syscall.SIGKILL || exit.Code == shellKilled) && s.client.oomKills() > s.oomKills {
		exit.OOMKilled = true
	}
	return err
}

// exitOf is what Wait returns for an exit frame.
func exitOf(f wire.StreamFrame) error {
	const maxSignal = 64
	if err := checkExitCode(f.ExitCode); err != nil {
		return err
	}
	if f.Signal < 0 || f.Signal > maxSignal {
		return &JSONError{fmt.Errorf("command ended by signal %d", f.Signal)}
	}
	if f.ExitCode == 0 && f.Error == "" && f.Signal == 0 && !f.TimedOut && !f.OOMKilled {
		return nil
	}
	return &ExitError{Code: int(f.ExitCode), Signal: syscall.Signal(f.Signal), TimedOut: f.TimedOut, OOMKilled: f.OOMKilled, Message: capText(f.Error)}
}

// lineSource reads frames as lines. A line that has begun must end within stall;
// between lines a command may be silent for as long as it likes.
func (s *session) lineSource(stall time.Duration) func() (wire.StreamFrame, error) {
	guard := &stallGuard{conn: s.conn, from: s.conn, stall: stall}
	lines := wire.NewLineReader(guard, wire.MaxExecLine, nil)
	guard.inMessage = func() bool { return lines.Buffered() > 0 }
	var legacy []wire.StreamFrame
	return func() (wire.StreamFrame, error) {
		if len(legacy) > 0 {
			f := legacy[0]
			legacy = legacy[1:]
			return f, nil
		}
		line, err := lines.ReadLine()
		if err != nil {
			return wire.StreamFrame{}, err
		}
		f, l, err := wire.DecodeStream(line)
		if err != nil {
			return wire.StreamFrame{}, &JSONError{err}
		}
		if l == nil {
			return f, nil
		}
		// An agent that does not stream: its one reply as frames (seed 001).
		legacy = []wire.StreamFrame{
			{Type: wire.FrameTypeStderr, Data: wire.Data(l.Stderr)},
			{Type: wire.FrameTypeExit, ExitCode: l.ExitCode, Error: l.Error},
		}
		return wire.StreamFrame{Type: wire.FrameTypeStdout, Data: wire.Data(l.Stdout)}, nil
	}
}

// frameSource reads binary frames, with the same rule.
func (s *session) frameSource(stall time.Duration) func() (wire.StreamFrame, error) {
	guard := &stallGuard{conn: s.conn, from: s.conn, stall: stall}
	buffered := bufio.NewReaderSize(guard, wire.ChunkSize)
	frames := wire.NewFrameReader(buffered)
	within := false
	guard.inMessage = func() bool { return within }
	return func() (wire.StreamFrame, error) {
		within = false
		if _, err := buffered.Peek(1); err != nil {
			return wire.StreamFrame{}, err
		}
		within = true
		kind, payload, err := frames.ReadFrame()
		if err != nil {
			return wire.StreamFrame{}, err
		}
		switch kind {
		case wire.FrameStdout:
			return wire.StreamFrame{Type: wire.FrameTypeStdout, Data: payload}, nil
		case wire.FrameStderr:
			return wire.StreamFrame{Type: wire.FrameTypeStderr, Data: payload}, nil
		case wire.FrameControl:
			f, l, err := wire.DecodeStream(payload)
			if err == nil && (l != nil || f.Type == wire.FrameTypeStdout || f.Type == wire.FrameTypeStderr) {
				err = errors.New("not a control frame")
			}
			if err != nil {
				return wire.StreamFrame{}, &JSONError{err}
			}
			return f, nil
		default:
			return wire.StreamFrame{}, &JSONError{fmt.Errorf("frame of kind %d in a command's output", kind)}
		}
	}
}

// stallGuard reads from a connection with a deadline only while a message is
// under way (threat T20).
type stallGuard struct {
	conn      net.Conn
	from      io.Reader // where to read: the connection, or what has buffered some of it
	stall     time.Duration
	inMessage func() bool
	armed     bool
}

func (g *stallGuard) Read(p []byte) (int, error) {
	within := g.inMessage()
	if within || g.armed {
		var deadline time.Time
		if within {
			deadline = time.Now().Add(g.stall)
		}
		if err := g.conn.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		g.armed = within
	}
	return g.from.Read(p)
}

// stuckWrite is how long Wait waits at least for a Write of the caller's once the
// command has been given up.
const stuckWrite = time.Second

// over waits for the end. It is false if the command was given up and a Write of the
// caller's does not return: into a pipe that nobody reads, for example.
func (s *session) over(delay time.Duration) bool {
	select {
	case <-s.drained:
	case <-s.ctx.Done():
		if !s.drains(max(delay, stuckWrite)) {
			return false
		}
	}
	<-s.done
	return true
}

// drains waits for the last Write, and is false if one takes longer than limit.
func (s *session) drains(limit time.Duration) bool {
	late := time.NewTicker(limit)
	defer late.Stop()
	for {
		before := s.writes.Load()
		select {
		case <-s.drained:
			return true
		case <-late.C:
			if before%2 == 1 && s.writes.Load() == before {
				return false
			}
		}
	}
}

// wait is Cmd.Wait.
func (s *session) wait(delay time.Duration) error {
	if !s.over(delay) {
		return s.client.explain(context.Cause(s.ctx))
	}
	s.sendMu.Lock()
	s.sentEOF = true
	s.sendMu.Unlock()
	s.client.log.LogAttrs(context.WithoutCancel(s.ctx), slog.LevelDebug, "command ended", slog.Int("pid", s.started.PID))
	if s.stdinDone == nil {
		return s.err
	}
	s.interrupt()
	late := time.NewTimer(delay)
	defer late.Stop()
	select {
	case <-s.stdinDone:
	case <-late.C:
	}
	if s.err != nil {
		return s.err
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	return s.stdinErr
}
