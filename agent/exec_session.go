package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// An execSession is one connection and the process at the other end of it.
type execSession struct {
	log  *slog.Logger
	conn net.Conn
	in   *wire.LineReader
	out  *execWriter
	req  wire.ExecRequest
	p    *proc.Process
	sub  *proc.Subscriber // of a detached process; nil otherwise

	over   <-chan struct{} // closed when input is no longer wanted
	cancel func()          // closes it

	mu    sync.Mutex
	cause error // why the session was ended from here; guarded by mu
}

// errGone means that the host has gone, so that there is nobody to answer.
var errGone = errors.New("host has gone")

// A protocolError is the host's fault and is told to it in the exit frame.
type protocolError struct{ cause error }

func (e *protocolError) Error() string { return "protocol error: " + e.cause.Error() }
func (e *protocolError) Unwrap() error { return e.cause }

// run moves bytes in both directions until the process has ended and the host has
// been told, or until the host has gone.
func (x *execSession) run(ctx context.Context) {
	over, cancel := context.WithCancel(context.Background())
	defer cancel()
	x.over, x.cancel = over.Done(), cancel
	stop := context.AfterFunc(ctx, func() { x.end(errGone) })

	x.sayStarted()
	var input, output sync.WaitGroup
	input.Go(x.readInput)
	if x.sub != nil {
		output.Go(x.copyHub)
	} else {
		output.Go(func() { x.copyOutput(wire.FrameStdout, x.p.Stdout()) })
		if r := x.p.Stderr(); r != nil {
			output.Go(func() { x.copyOutput(wire.FrameStderr, r) })
		}
	}
	output.Wait()
	x.awaitEnd()
	stop() // from here on nothing is left to be killed
	if !errors.Is(x.why(), errGone) {
		x.sayExit()
	}
	if x.sub != nil {
		x.sub.Close()
	}
	x.closeConn(&input)
}

// end ends the session for a cause, the first of which counts: a process that
// runs for this host alone is killed, a detached one is left. A host that has
// gone does not read any more, so what waits for it is woken.
func (x *execSession) end(cause error) {
	x.mu.Lock()
	if x.cause == nil {
		x.cause = cause
	}
	gone := errors.Is(cause, errGone)
	if gone {
		x.cause = cause
	}
	x.mu.Unlock()
	if gone {
		_ = x.conn.SetDeadline(longAgo)
	}
	if x.sub != nil {
		x.sub.Close()
	} else {
		x.p.Kill()
	}
	x.cancel()
}

// why returns the cause of an end from here, nil if the process ended by itself.
func (x *execSession) why() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cause
}

// awaitEnd waits for the end of the process, or of the session if the process is
// to go on without it.
func (x *execSession) awaitEnd() {
	left := x.over
	if x.sub == nil {
		left = nil
	}
	select {
	case <-x.p.Wait():
	case <-left:
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

func (x *execSession) sayStarted() {
	if !x.req.Started {
		return
	}
	f := wire.StreamFrame{Type: wire.FrameTypeStarted, PID: x.p.PID(), ID: x.p.ID()}
	if x.sub != nil {
		f.Offset = x.sub.Offset()
	}
	if err := x.out.frame(f); err != nil {
		x.end(errGone)
	}
}

func (x *execSession) sayExit() {
	st := x.p.Status()
	f := wire.StreamFrame{Type: wire.FrameTypeExit, ExitCode: int32(st.ExitCode)} //nolint:gosec // -1 to 255.
	switch cause := x.why(); {
	case cause != nil:
		f.ExitCode, f.Error = -1, cause.Error()
	case st.TimedOut:
		f.Error = fmt.Sprintf("timed out after %v", x.p.Timeout())
	case st.Signal != 0:
		f.Error = "signal: " + syscall.Signal(st.Signal).String()
		if st.CoreDumped {
			f.Error += " (core dumped)"
		}
	}
	if x.req.Started {
		f.Signal, f.TimedOut, f.OOMKilled = st.Signal, st.TimedOut, st.OOMKilled
	}
	x.log.Debug("exec ended", slog.Int("pid", x.p.PID()), slog.Int("exit_code", int(f.ExitCode)), slog.String("error", f.Error))
	_ = x.out.frame(f)
}

// closeConn ends the connection in an order in which the exit frame cannot be
// lost: a socket that is closed with input unread is reset.
func (x *execSession) closeConn(input *sync.WaitGroup) {
	x.cancel()
	if !errors.Is(x.why(), errGone) {
		linger(x.conn, input)
	}
	_ = x.conn.SetReadDeadline(longAgo)
	input.Wait()
}

// lingerTime bounds the wait for a host to close its end after the exit frame.
const lingerTime = 250 * time.Millisecond

// linger says that no more is coming, where the connection can say so, and lets
// the reader read on for a while.
func linger(conn net.Conn, input *sync.WaitGroup) {
	c, ok := conn.(interface{ CloseWrite() error })
	if !ok || c.CloseWrite() != nil {
		return
	}
	_ = conn.SetReadDeadline(time.Now().Add(lingerTime))
	input.Wait()
}

// lingerUnread does the same for a connection that nobody reads.
func lingerUnread(conn net.Conn) {
	var input sync.WaitGroup
	input.Go(func() { discard(conn) })
	linger(conn, &input)
	_ = conn.SetReadDeadline(longAgo)
	input.Wait()
}

// discard reads r to its end.
func discard(r io.Reader) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := r.Read(buf); err != nil {
			return
		}
	}
}
