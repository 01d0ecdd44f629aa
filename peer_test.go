package bouvet_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
)

// pipePeer dials connections of net.Pipe, which work in a synctest bubble, and
// has serve do with the other end of each what it wants. The number counts from 0.
type pipePeer struct {
	serve func(n int, conn net.Conn, port uint32)
	mu    sync.Mutex
	n     int
}

func (p *pipePeer) Dial(_ context.Context, port uint32) (net.Conn, error) {
	p.mu.Lock()
	n := p.n
	p.n++
	p.mu.Unlock()
	host, guest := net.Pipe()
	go func() {
		defer func() { _ = guest.Close() }()
		p.serve(n, guest, port)
	}()
	return host, nil
}

func (p *pipePeer) dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.n
}

// rpcPeer answers each request of each connection with what answer returns for
// it; an empty line is no answer at all.
func rpcPeer(answer func(req wire.Request) string) *pipePeer {
	return &pipePeer{serve: func(_ int, conn net.Conn, _ uint32) { serveRPC(conn, answer) }}
}

func serveRPC(conn net.Conn, answer func(req wire.Request) string) {
	r := bufio.NewReader(conn)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		req, rpcErr := wire.DecodeRequest(line)
		if rpcErr != nil {
			panic(rpcErr)
		}
		if reply := answer(req); reply != "" {
			if _, err := fmt.Fprintln(conn, reply); err != nil {
				return
			}
		}
	}
}

func result(req wire.Request, json string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":%s}`, req.ID, json)
}

func rpcFailure(req wire.Request, code int, message string) string {
	text, err := json.Marshal(message)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":%d,"message":%s}}`, req.ID, code, text)
}

// pong answers pings, and all else with next.
func pong(next func(req wire.Request) string) func(req wire.Request) string {
	return func(req wire.Request) string {
		if req.Method == wire.MethodPing {
			return result(req, `{"pong":true}`)
		}
		return next(req)
	}
}

func methodNotFound(req wire.Request) string {
	return rpcFailure(req, int(wire.CodeMethodNotFound), "method not found: "+req.Method)
}

// connect connects to d and closes the client when the test ends.
func connect(t testing.TB, d bouvet.Dialer, opts *bouvet.ClientOptions) *bouvet.AgentClient {
	t.Helper()
	c, err := bouvet.Connect(t.Context(), d, opts)
	if err != nil {
		t.Fatalf("Connect: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// timeless is for helpers that have no test at hand.
var timeless = context.Background()

// pingOnly serves a stream of a scripted guest.
func pingOnly(_ context.Context, conn net.Conn, _ uint32) { serveRPC(conn, pong(methodNotFound)) }

// fakeWithExec returns a driver whose guests answer pings and end each command at
// once with success, after they have shown its request to see.
func fakeWithExec(t testing.TB, see func(wire.ExecRequest)) *vmtest.Fake {
	return vmtest.NewFake(t, vmtest.FakeOptions{Guest: vmtest.Scripted(func(ctx context.Context, conn net.Conn, port uint32) {
		if port != wire.PortExec {
			pingOnly(ctx, conn, port)
			return
		}
		line, err := bufio.NewReader(conn).ReadBytes('\n')
		if err != nil {
			return
		}
		req, err := wire.DecodeExecRequest(line)
		if err != nil {
			t.Error(err)
		}
		see(req)
		_, _ = fmt.Fprintln(conn, `{"type":"exit"}`)
	})})
}
