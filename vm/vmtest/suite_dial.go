package vmtest

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

var dialSections = []section{
	{"unserved port", dialUnserved},
	{"ended context", dialEndedContext},
	{"deadlines", dialDeadlines},
	{"close unblocks", dialClose},
	{"concurrently", dialConcurrently},
	{"T15 close is a disconnect", dialDisconnect},
}

// prompt is when an answer that needs no wait is late, on a busy host.
const prompt = 5 * time.Second

func (e *env) dial(m vm.Machine, port uint32) net.Conn {
	e.Helper()
	conn, err := m.Dial(e.context(), port)
	if err != nil {
		e.Fatalf("Dial %d: %v", port, err)
	}
	e.Cleanup(func() { _ = conn.Close() })
	return conn
}

// A port that the agent does not serve is an error that comes soon, and not the
// machine's end.
func dialUnserved(e *env) {
	g := e.boot(e.config())
	begin := time.Now()
	conn, err := g.Dial(e.context(), 4711)
	if err == nil {
		e.Error("a port that nobody serves was opened")
		_ = conn.Close()
	}
	if errors.Is(err, vm.ErrGone) {
		e.Errorf("got %v, which says that the machine is gone", err)
	}
	if took := time.Since(begin); took > prompt {
		e.Errorf("the refusal took %v", took)
	}
	g.ping()
}

func dialEndedContext(e *env) {
	g := e.boot(e.config())
	ended, end := context.WithCancelCause(e.context())
	cause := errors.New("the caller has what it wants")
	end(cause)
	begin := time.Now()
	conn, err := g.Dial(ended, wire.PortRPC)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, cause) {
		e.Errorf("got %v, want %v", err, cause)
	}
	if took := time.Since(begin); took > prompt {
		e.Errorf("it took %v", took)
	}
	// ctx bounds the handshake, and not the stream.
	ctx, cancel := context.WithCancel(e.context())
	conn, err = g.Dial(ctx, wire.PortRPC)
	cancel()
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	e.rpcPing(conn)
}

// rpcPing asks on a stream.
func (e *env) rpcPing(conn net.Conn) {
	e.Helper()
	if err := conn.SetDeadline(time.Now().Add(bound)); err != nil {
		e.Fatal(err)
	}
	if _, err := io.WriteString(conn, `{"jsonrpc":"2.0","id":7,"method":"ping"}`+"\n"); err != nil {
		e.Fatal(err)
	}
	line, err := wire.NewLineReader(conn, wire.LargeLine, nil).ReadLine()
	if err != nil {
		e.Fatal(err)
	}
	if r, err := wire.DecodeResponse(line); err != nil || r.ID != 7 || r.Error != nil {
		e.Fatalf("got %q, %v", line, err)
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		e.Fatal(err)
	}
}

// Deadlines end reads and writes, and lifted ones do not.
func dialDeadlines(e *env) {
	g := e.boot(e.config())
	conn := e.dial(g, wire.PortRPC)
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		e.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		e.Errorf("Read: got %d, %v, want a missed deadline", n, err)
	}
	e.rpcPing(conn)

	// Nobody reads the input of this command, so that a write must block in the end.
	conn = e.dial(g, wire.PortExec)
	if _, err := io.WriteString(conn, `{"command":["sleep","60"]}`+"\n"); err != nil {
		e.Fatal(err)
	}
	frame := wire.AppendDataFrame(nil, wire.FrameTypeStdin, make([]byte, 32<<10))
	var err error
	for sent := 0; err == nil && sent < 1<<30; sent += len(frame) {
		if err := conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
			e.Fatal(err)
		}
		_, err = conn.Write(frame)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		e.Errorf("Write: got %v, want a missed deadline", err)
	}
	g.ping() // T09: other streams go on
}

// Close unblocks a Read, and may be repeated.
func dialClose(e *env) {
	g := e.boot(e.config())
	conn := e.dial(g, wire.PortRPC)
	e.rpcPing(conn)
	reading := make(chan error, 1)
	go func() {
		_, err := conn.Read(make([]byte, 1))
		reading <- err
	}()
	if err := conn.Close(); err != nil {
		e.Errorf("Close: %v", err)
	}
	if err := <-reading; err == nil {
		e.Error("Read of a closed stream: got no error")
	}
	_ = conn.Close()
	if _, err := conn.Write([]byte("x")); err == nil {
		e.Error("Write to a closed stream: got no error")
	}
}

func dialConcurrently(e *env) {
	g := e.boot(e.config())
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			conn, err := g.Dial(e.context(), wire.PortRPC)
			if err != nil {
				e.Errorf("Dial: %v", err)
				return
			}
			_ = conn.Close()
		})
	}
	all.Wait()
	g.ping()
}

// The agent sees that a stream was closed: it ends the command that ran for it.
func dialDisconnect(e *env) {
	g := e.boot(e.config())
	conn := e.dial(g, wire.PortExec)
	if _, err := io.WriteString(conn, `{"command":["sleep","4711"],"started":true}`+"\n"); err != nil {
		e.Fatal(err)
	}
	line, err := wire.NewLineReader(conn, wire.MaxExecLine, nil).ReadLine()
	if err != nil {
		e.Fatal(err)
	}
	started, _, err := wire.DecodeStream(line)
	if err != nil || started.PID == 0 {
		e.Fatalf("got %q, %v, want a started frame", line, err)
	}
	if err := conn.Close(); err != nil {
		e.Fatal(err)
	}
	e.eventually("the command ends with its stream", func() bool { return len(g.running(started.PID)) == 0 })
}

// running returns those of the processes that the agent still runs.
func (g *guest) running(pids ...int) []int {
	g.e.Helper()
	all, err := g.Processes(g.e.context())
	if err != nil {
		g.e.Fatal(err)
	}
	var found []int
	for _, p := range all {
		for _, pid := range pids {
			if p.Running && p.PID == pid {
				found = append(found, pid)
			}
		}
	}
	return found
}
