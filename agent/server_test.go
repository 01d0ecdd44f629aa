package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

const pingLine = `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"

const pongLine = `{"jsonrpc":"2.0","id":1,"result":{"pong":true}}`

// C5, L2: the agent answers CONNECT where no Firecracker does, and does without.
func TestFirstLine(t *testing.T) {
	socket := startServer(t, agent.Options{ExecPort: 11000})
	for _, x := range []struct{ name, send, want string }{
		{"CONNECT", "CONNECT 52\n" + pingLine, "OK 52\n" + pongLine},
		{"CONNECT with CR", "CONNECT 52\r\n" + pingLine, "OK 52\n" + pongLine},
		{"blank lines before", "\n \r\n\t\nCONNECT 52\n\n" + pingLine, "OK 52\n" + pongLine},
		{"JSON first", pingLine, pongLine},
		{"blank lines and JSON", "\n\r\n" + pingLine, pongLine},
		{"CONNECT twice", "CONNECT 52\nCONNECT 52\n", "OK 52\n" + `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"no number", "CONNECT abc\n", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"negative", "CONNECT -52\n", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"a longer word", "CONNECTED\n", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"lower case", "connect 52\n", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"a line too long for CONNECT", "CONNECT " + strings.Repeat("0", 100) + "52\n", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700`},
		{"unserved port", "CONNECT 53\n" + pingLine, ""},
		{"no port of ours", "CONNECT 4294967295\n", ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, whole := range []bool{true, false} {
				c := dial(t, socket)
				if whole {
					c.send(x.send)
				} else {
					for i := range len(x.send) {
						if _, err := c.Write([]byte{x.send[i]}); err != nil && x.want != "" {
							t.Fatal(err)
						}
					}
				}
				if x.want == "" {
					c.expectEnd()
					continue
				}
				for want := range strings.SplitSeq(x.want, "\n") {
					if line := c.line(); !strings.HasPrefix(line, want) {
						t.Errorf("whole %v: got %q, want %q", whole, line, want)
					}
				}
			}
		})
	}
}

// A port given to Serve is what a connection gets that does not choose.
func TestServeOnePort(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s := agent.NewServer(agent.Options{})
	for _, x := range []struct {
		port       uint32
		send, want string
	}{
		{52, pingLine, pongLine},
		{52, "CONNECT 52\n", "OK 52"},
		{10700, "CONNECT 52\n", "OK 52"},
		{52, "CONNECT 10700\n", "OK 10700"},
	} {
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			s.ServeConn(context.Background(), theirs, x.port)
			close(done)
		}()
		c := newClient(t, ours)
		c.send(x.send)
		if got := c.line(); got != x.want {
			t.Errorf("port %d, %q: got %q, want %q", x.port, x.send, got, x.want)
		}
		_ = ours.Close()
		<-done
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// L6, C4: connections are served at once, and an idle one is no burden.
func TestConnectionsAreConcurrent(t *testing.T) {
	socket := startServer(t, agent.Options{})
	var all []*client
	for range 100 {
		all = append(all, dial(t, socket))
	}
	for _, c := range slices.Backward(all) {
		must[m](c, "ping", nil)
	}
}

func TestConnectionsBeyondTheLimitAreClosed(t *testing.T) {
	socket := startServer(t, agent.Options{MaxConns: 2})
	a, b := dial(t, socket), dial(t, socket)
	must[m](a, "ping", nil)
	must[m](b, "ping", nil)
	dial(t, socket).expectEnd()
	must[m](b, "ping", nil)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room again", func() bool {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		defer func() { _ = conn.Close() }()
		_, err = io.WriteString(conn, pingLine)
		one := make([]byte, 1)
		if err == nil {
			_, err = conn.Read(one)
		}
		return err == nil
	})
}

// A flakyListener fails before it delivers.
type flakyListener struct {
	net.Listener
	failures atomic.Int32
}

func (l *flakyListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "unix", Err: unix.EMFILE}
	}
	return l.Listener.Accept()
}

// C3: an accept that fails does not end the agent.
func TestAcceptErrorsAreSurvived(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	inner, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	l := &flakyListener{Listener: inner}
	l.failures.Store(4)
	s := agent.NewServer(agent.Options{})
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- s.Serve(ctx, l, 52) }()
	must[m](dial(t, inner.Addr().String()), "ping", nil)
	cancel()
	if err := <-served; err != nil {
		t.Errorf("Serve ended with %v, want nil when its context ends", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Serve(context.Background(), inner, 52); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed server: %v", err)
	}
}

// Close ends connections in any state, and what runs for them.
func TestCloseEndsEverything(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s := agent.NewServer(agent.Options{})
	l, err := net.Listen("unix", t.TempDir()+"/s")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l, 0) }()
	socket := l.Addr().String()
	mark := marker(t)
	idle, half, busy, deaf, watching := dial(t, socket), dial(t, socket), dial(t, socket), dial(t, socket), dial(t, socket)
	must[m](idle, "ping", nil)
	half.send(`{"jsonrpc":"2.0",`)
	busy.request("exec", m{"cmd": "sleep " + mark})
	for range 3 {
		deaf.request("exec", m{"cmd": "head -c 1000000 /dev/zero"})
	}
	must[struct{}](watching, "watch", m{"path": t.TempDir()})
	eventually(t, "the command runs", func() bool { return running(t, mark) == 1 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if n := running(t, mark); n != 0 {
		t.Errorf("%d commands survived Close", n)
	}
	for _, c := range []*client{idle, half, busy} {
		c.expectEnd()
	}
	ours, theirs := net.Pipe()
	s.ServeConn(context.Background(), theirs, 52)
	if _, err := ours.Write([]byte("x")); err == nil {
		t.Error("a closed server still reads")
	}
}

// The host's mux and the agent's end of it.
func TestMux(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	host, guest := socketpair(t)
	mux := vsock.NewMux(host)
	s := agent.NewServer(agent.Options{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), vsock.NewMuxListener(guest), 0) }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	open := func() *client {
		conn, err := mux.Dial(ctx, 52)
		if err != nil {
			t.Fatal(err)
		}
		return newClient(t, conn)
	}
	a, b := open(), open()
	mark := marker(t)
	a.request("exec", m{"cmd": "sleep " + mark})
	eventually(t, "the command runs", func() bool { return running(t, mark) == 1 })
	if got := must[execResult](b, "exec", m{"cmd": "echo b"}); got.Stdout != "b\n" {
		t.Errorf("second stream: %+v", got)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command of the closed stream is gone", func() bool { return running(t, mark) == 0 }) // T15
	if conn, err := mux.Dial(ctx, 53); err == nil {
		_ = conn.Close()
		t.Error("port 53 answered")
	}
	must[m](b, "ping", nil)
	if err := mux.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, io.EOF) {
		t.Errorf("Serve ended with %v, want io.EOF when the host goes", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func socketpair(t testing.TB) (a, b *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return unixConn(t, fds[0]), unixConn(t, fds[1])
}

// T10, T17: 80 MiB without a newline are refused with flat memory, and so are
// many at once.
func TestEndlessLinesTakeNoMemory(t *testing.T) {
	socket := startServer(t, agent.Options{})
	before := heap()
	var peak atomic.Uint64
	chunk := []byte(strings.Repeat("x", 1<<20))
	const lines, each = 4, 80
	ends := make(chan string, lines)
	for range lines {
		c := dial(t, socket)
		go func() {
			for range each {
				if _, err := c.Write(chunk); err != nil {
					break // refused already
				}
				peak.Store(max(peak.Load(), heap()))
			}
			line, _ := c.r.ReadString('\n')
			ends <- line
		}()
	}
	for range lines {
		if got := <-ends; !strings.Contains(got, `"id":0,"error":{"code":-32600`) {
			t.Errorf("got %q, want -32600", got)
		}
	}
	// One line's buffer, twice while it grows.
	if grown := int64(peak.Load()) - int64(before); grown > 150<<20 {
		t.Errorf("heap grew by %d MiB", grown>>20)
	}
	runtime.GC()
	if kept := int64(heap()) - int64(before); kept > 8<<20 {
		t.Errorf("%d MiB are still held afterwards", kept>>20)
	}
}

// The largest content in its worst escaping fits a line; the connection goes on.
func TestLargestRequest(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	path := t.TempDir() + "/f"
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"write_file","params":{"path":%q,"content":"`, path))
	piece := strings.Repeat(`\u0001`, 1<<16)
	for range 10 << 20 >> 16 {
		c.send(piece)
	}
	c.send("\"}}\n" + pingLine)
	if r := c.response(); r.ID != 9 || r.Error != nil {
		t.Fatalf("got %+v", r)
	}
	if r := c.response(); r.ID != 1 {
		t.Fatalf("ping: got %+v", r)
	}
	got := must[m](c, "read_file", m{"path": path})
	if content, _ := got["content"].(string); content != strings.Repeat("\x01", 10<<20) {
		t.Errorf("read back %d bytes that differ", len(content))
	}
}

// A line that has begun must end in time; a connection may be idle for ever.
func TestUnfinishedLineEndsTheConnection(t *testing.T) {
	for _, begin := range []string{"", "CONN", "CONNECT 52\n", `{"jsonrpc":`, pingLine + "{", pingLine + pingLine, "CONNECT 10700\n", "CONNECT 10700\n{"} {
		t.Run(begin, func(t *testing.T) {
			idle := begin == "" || strings.HasSuffix(begin, "\n")
			synctest.Test(t, func(t *testing.T) {
				s := agent.NewServer(agent.Options{Proc: outsideManager})
				ours, theirs := net.Pipe()
				done := make(chan struct{})
				go func() {
					s.ServeConn(t.Context(), theirs, 0)
					close(done)
				}()
				go func() { _, _ = io.Copy(io.Discard, ours) }()
				if begin != "" {
					if _, err := io.WriteString(ours, begin); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				select {
				case <-done:
					if idle {
						t.Errorf("an idle connection was ended after %v", time.Since(start))
					}
				case <-time.After(time.Hour):
					if !idle {
						t.Error("an unfinished line was waited for")
					}
				}
				_ = ours.Close()
				<-done
				_ = s.Close()
			})
		})
	}
}
