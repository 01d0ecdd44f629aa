package agent

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// readInput handles what the host sends until the connection or the session ends.
func (x *execSession) readInput() {
	next := x.lineInput
	if x.out.binary {
		frames := wire.NewFrameReader(bufio.NewReaderSize(x.in, 32<<10))
		next = func() error { return x.frameInput(frames) }
	}
	var err error
	for err == nil && !isDone(x.over) {
		err = next()
	}
	var bad *protocolError
	switch {
	case isDone(x.over):
		// The host may still be sending; what it sends means nothing any more.
		if err == nil || errors.As(err, &bad) {
			discard(x.conn)
		}
	case errors.Is(err, io.EOF):
		x.inputEnded()
	case errors.As(err, &bad):
		x.end(bad)
		discard(x.conn)
	default:
		x.end(errGone)
	}
}

func isDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// inputEnded handles an end of the stream: the end of stdin from a host that only
// finished sending, the end of the session from one that is gone. A detached
// process keeps its stdin: the next host may have more.
func (x *execSession) inputEnded() {
	if x.sub == nil {
		x.p.Feed().End()
	}
	vsock.AwaitHangup(x.conn)
	if !isDone(x.over) {
		x.end(errGone) // or the server closes the connection
	}
}

// lineInput handles the next line.
func (x *execSession) lineInput() error {
	line, err := x.in.ReadLine()
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, wire.ErrLineTooLong), errors.Is(err, errBusy):
		return &protocolError{err}
	case err != nil:
		return err
	case isBlank(line):
		return nil
	}
	return x.message(line)
}

// frameInput handles the next binary frame.
func (x *execSession) frameInput(frames *wire.FrameReader) error {
	kind, payload, err := frames.ReadFrame()
	switch {
	case errors.Is(err, wire.ErrBadFrame), errors.Is(err, io.ErrUnexpectedEOF):
		return &protocolError{err}
	case err != nil:
		return err
	case kind == wire.FrameStdin:
		return x.stdin(bytes.Clone(payload))
	case kind == wire.FrameControl:
		return x.message(payload)
	}
	return nil
}

// message handles one input frame in JSON. Types that this agent does not know
// mean nothing to it.
func (x *execSession) message(line []byte) error {
	f, err := wire.DecodeInput(line)
	if err != nil {
		return tolerate(line, err)
	}
	switch f.Type {
	case wire.FrameTypeStdin:
		return x.stdin(f.Data)
	case wire.FrameTypeEOF:
		x.p.Feed().End()
	case wire.FrameTypeResize:
		if f.Cols > 0 && f.Rows > 0 {
			_ = x.p.Resize(f.Cols, f.Rows)
		}
	case wire.FrameTypeSignal:
		if f.Signal > 0 && f.Signal <= maxSignal {
			x.signal(unix.Signal(f.Signal))
		}
	}
	return nil
}

// signal passes a signal on, after the thaw if processes are frozen.
func (x *execSession) signal(sig unix.Signal) {
	for errors.Is(x.p.Signal(sig, true), proc.ErrFrozen) && !isDone(x.over) {
		stop := x.watchHangup()
		x.p.AwaitThaw(x.over)
		stop()
	}
}

// tolerate ignores a frame that cannot be carried out where that loses nothing: a
// size beyond all terminals, a field of another type in a frame we do not know.
// What might have been stdin or its end is an error: to go on without it would
// give the command other input than the host sent.
func tolerate(line []byte, err error) error {
	var f struct {
		Type string `json:"type"`
	}
	if wire.Decode(line, &f) != nil {
		return &protocolError{err}
	}
	switch strings.ToLower(strings.TrimSpace(f.Type)) {
	case "", wire.FrameTypeStdin, wire.FrameTypeEOF:
		return &protocolError{err}
	}
	return nil
}

// stdin queues data. While the process has too much to read already, no more is
// read from the host, so that a signal behind it waits; but a host that goes is
// noticed, where the connection can tell.
func (x *execSession) stdin(data []byte) error {
	done, err := x.p.Feed().TryPut(data)
	if !done {
		stop := x.watchHangup()
		err = x.p.Feed().Put(data, x.over)
		stop()
	}
	if err == nil || isDone(x.over) {
		return nil
	}
	return &protocolError{err}
}

// watchHangup ends the session when the host goes, until it is stopped. Nobody
// may read the connection meanwhile.
func (x *execSession) watchHangup() (stop func()) {
	if !canTellHangup(x.conn) {
		return func() {}
	}
	stopped, watched := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(watched)
		vsock.AwaitHangup(x.conn)
		if !isDone(stopped) {
			x.end(errGone) // or the server closes the connection
		}
	}()
	return func() {
		close(stopped)
		_ = x.conn.SetReadDeadline(longAgo)
		<-watched
		_ = x.conn.SetReadDeadline(time.Time{})
		if isDone(x.over) {
			// Whoever ended the session set the deadline before, for the reads to come.
			_ = x.conn.SetReadDeadline(longAgo)
		}
	}
}

// canTellHangup reports whether vsock.AwaitHangup can tell a host that is gone
// while there is input that has not been read.
func canTellHangup(conn net.Conn) bool {
	if _, ok := conn.(interface{ AwaitHangup() bool }); ok {
		return true
	}
	_, ok := conn.(*net.UnixConn)
	return ok
}
