package bouvet_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
)

// B1, B2, B3, B6, B11, D1 to D11: what each method sends, and makes of the answer.
func TestMethods(t *testing.T) {
	var requests []string
	ids := uint64(0)
	answers := map[string]string{
		"exec":       `{"exit_code":3,"stdout":"out","stderr":"err"}`,
		"exec_code":  `{"exit_code":-1,"stdout":"","stderr":"unsupported language: cobol"}`,
		"read_file":  `{"content":"text"}`,
		"write_file": `{"success":true}`,
		"list_dir":   `{"entries":[{"name":".a","is_dir":false,"size":3},{"name":"b","is_dir":true,"size":0}]}`,
		"custom":     `{"x":18446744073709551615}`,
	}
	peer := rpcPeer(pong(func(req wire.Request) string {
		if req.ID <= ids || req.JSONRPC != "2.0" {
			t.Errorf("got id %d after %d and version %q, want a higher one and 2.0", req.ID, ids, req.JSONRPC)
		}
		ids = req.ID
		requests = append(requests, req.Method+" "+string(req.Params))
		return result(req, answers[req.Method])
	}))
	c := connect(t, peer, nil)
	ctx := t.Context()
	check := func(got any, err error, want any) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}
	r, err := c.Exec(ctx, "echo <out>", nil)
	check(r, err, &bouvet.ExecResult{ExitCode: 3, Stdout: "out", Stderr: "err"})
	if r.Success() { // D7
		t.Error("exit code 3 is a success")
	}
	r, err = c.ExecCode(ctx, "cobol", "DISPLAY 1", nil) // D5
	check(r, err, &bouvet.ExecResult{ExitCode: -1, Stderr: "unsupported language: cobol"})
	s, err := c.ReadFile(ctx, "/etc/a")
	check(s, err, "text")
	check(nil, c.WriteFile(ctx, "/b", "ä\n"), nil)
	entries, err := c.ListDir(ctx, "/")
	check(entries, err, []bouvet.FileEntry{{Name: ".a", Size: 3}, {Name: "b", IsDir: true}})
	var custom struct {
		X uint64 `json:"x"`
	}
	check(nil, c.Call(ctx, "custom", nil, &custom), nil)
	check(custom.X, nil, uint64(1<<64-1))
	check(nil, c.Call(ctx, "custom", map[string]int{"a": 1}, nil), nil)

	want := []string{
		`exec {"cmd":"echo <out>"}`,
		`exec_code {"lang":"cobol","code":"DISPLAY 1"}`,
		`read_file {"path":"/etc/a"}`,
		`write_file {"path":"/b","content":"ä\n"}`,
		`list_dir {"path":"/"}`,
		`custom {}`,
		`custom {"a":1}`,
	}
	if diff := cmp.Diff(want, requests); diff != "" {
		t.Error(diff)
	}
	if got := peer.dials(); got != 1 {
		t.Errorf("got %d connections for calls one after the other, want 1", got)
	}
}

// B7, B8, B9, L5, L10: errors of a call and what becomes of its connection.
func TestCallErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(req wire.Request) string
		want   error
		text   string
		redial bool
	}{
		{"B8 error", func(r wire.Request) string { return rpcFailure(r, -32603, "failed to stat '/x'") }, bouvet.ErrRPC, "RPC error -32603: failed to stat '/x'", false},
		{"B5 error with data", func(r wire.Request) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":null,"error":{"code":-1,"message":"m","data":null}}`, r.ID)
		}, bouvet.ErrRPC, "RPC error -1: m", false},
		{"B8 neither", func(r wire.Request) string { return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d}`, r.ID) }, bouvet.ErrRPC, "RPC error -1: missing result in response", true},
		{"B4 both", func(r wire.Request) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{},"error":{"code":1,"message":"m"}}`, r.ID)
		}, bouvet.ErrJSON, "", true},
		{"B9 not JSON", func(wire.Request) string { return "%!" }, bouvet.ErrJSON, "", true},
		{"B9 wrong type", func(r wire.Request) string { return result(r, `{"content":7}`) }, bouvet.ErrJSON, "", true},
		{"L10 error without an id", func(wire.Request) string {
			return `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error: x"}}`
		}, bouvet.ErrRPC, "RPC error -32700: parse error: x", true},
		{"L8 foreign id", func(r wire.Request) string { r.ID++; return result(r, `{"content":""}`) }, bouvet.ErrJSON, "", true},
		{"T19 result for id 0", func(r wire.Request) string { r.ID = 0; return result(r, `{"content":""}`) }, bouvet.ErrJSON, "", true},
		{"L10 version", func(r wire.Request) string { return strings.Replace(result(r, `{"content":""}`), "2.0", "1.0", 1) }, bouvet.ErrJSON, "", true},
		{"T19 a request from the guest", func(wire.Request) string { return `{"jsonrpc":"2.0","id":2,"method":"exec","params":{"cmd":"id"}}` }, bouvet.ErrJSON, "", true},
		{"T17 key twice", func(r wire.Request) string { return result(r, `{"content":"a","content":"b"}`) }, bouvet.ErrJSON, "", true},
		{"T17 key in another case", func(r wire.Request) string {
			return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"RESULT":{"content":"x"}}`, r.ID)
		}, bouvet.ErrRPC, "RPC error -1: missing result in response", true},
		{"T17 nesting", func(r wire.Request) string {
			return result(r, strings.Repeat("[", 10_000)+strings.Repeat("]", 10_000))
		}, bouvet.ErrJSON, "", true},
		{"T17 invalid UTF-8", func(r wire.Request) string { return result(r, "{\"content\":\"\xff\"}") }, bouvet.ErrJSON, "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer := rpcPeer(pong(func(r wire.Request) string {
				if r.Method == wire.MethodListDir {
					return result(r, `{"entries":[]}`)
				}
				return tt.answer(r)
			}))
			c := connect(t, peer, nil)
			_, err := c.ReadFile(t.Context(), "/x")
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if tt.text != "" && err.Error() != tt.text {
				t.Errorf("got %q, want %q", err, tt.text)
			}
			if _, err := c.ListDir(t.Context(), "/"); err != nil {
				t.Errorf("next call: %v", err)
			}
			want := 1
			if tt.redial {
				want = 2
			}
			if got := peer.dials(); got != want {
				t.Errorf("got %d connections, want %d", got, want)
			}
		})
	}
}

// B9: what cannot be encoded is a JSON error and is not sent.
func TestCallUnencodable(t *testing.T) {
	c := connect(t, rpcPeer(pong(methodNotFound)), nil)
	if err := c.Call(t.Context(), "x", make(chan int), nil); !errors.Is(err, bouvet.ErrJSON) {
		t.Errorf("got %v, want a JSON error", err)
	}
	if err := c.WriteFile(t.Context(), "/x", "\xff"); !errors.Is(err, bouvet.ErrJSON) {
		t.Errorf("got %v, want a JSON error", err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

// B7, L5, L8, T20: an answer that comes after 30 s reaches nobody, and the next
// call has a connection of its own.
func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := make(chan struct{})
		var closedAt atomic.Int64
		start := time.Now()
		peer := &pipePeer{serve: func(n int, conn net.Conn, _ uint32) {
			serveRPC(conn, pong(func(r wire.Request) string {
				if n > 0 {
					return result(r, `{"content":"second"}`)
				}
				// The agent sees the disconnect at once (that is what ends the command).
				var b [1]byte
				if _, err := conn.Read(b[:]); !errors.Is(err, io.EOF) {
					t.Errorf("got %v, want EOF", err)
				}
				closedAt.Store(int64(time.Since(start)))
				close(late)
				return result(r, `{"content":"first"}`)
			}))
		}}
		c := connect(t, peer, nil)
		_, err := c.ReadFile(t.Context(), "/slow")
		var rpc *bouvet.RPCError
		if !errors.As(err, &rpc) || rpc.Code != -1 || rpc.Message != "response timeout" || !rpc.Timeout() {
			t.Fatalf("got %v, want Rpc{-1, response timeout}", err)
		}
		if errors.Is(err, bouvet.ErrAgentTimeout) {
			t.Error("a late reply is an agent timeout")
		}
		if got := time.Since(start); got != 30*time.Second {
			t.Errorf("took %v, want 30s", got)
		}
		<-late
		if got := time.Duration(closedAt.Load()); got != 30*time.Second {
			t.Errorf("connection closed after %v, want 30s", got)
		}
		content, err := c.ReadFile(t.Context(), "/fast")
		if content != "second" || err != nil {
			t.Errorf("got %q, %v, want the second answer", content, err)
		}
		_ = c.Close()
		synctest.Wait()
	})
}

// T20: one byte a second keeps no call alive.
func TestCallDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer := &pipePeer{serve: func(_ int, conn net.Conn, _ uint32) {
			serveRPC(conn, pong(func(wire.Request) string {
				for {
					time.Sleep(time.Second)
					if _, err := conn.Write([]byte("{")); err != nil {
						return ""
					}
				}
			}))
		}}
		c := connect(t, peer, nil)
		start := time.Now()
		if _, err := c.ReadFile(t.Context(), "/x"); !errors.Is(err, bouvet.ErrRPC) || time.Since(start) != 30*time.Second {
			t.Errorf("got %v after %v, want a response timeout after 30s", err, time.Since(start))
		}
		_ = c.Close()
		time.Sleep(time.Second) // of the bubble's clock: the peer finds out at its next byte
		synctest.Wait()
	})
}

// Cancelling a call closes its connection at once, and only that.
func TestCallCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan time.Duration, 1)
		start := time.Now()
		peer := rpcPeer(nil)
		peer.serve = func(_ int, conn net.Conn, _ uint32) {
			serveRPC(conn, pong(func(wire.Request) string {
				var b [1]byte
				_, _ = conn.Read(b[:])
				gone <- time.Since(start)
				return ""
			}))
		}
		c := connect(t, peer, nil)
		cause := errors.New("the user went away")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(cause) })
		if _, err := c.Exec(ctx, "sleep 100", nil); !errors.Is(err, cause) {
			t.Errorf("got %v, want %v", err, cause)
		}
		if got := <-gone; got != 3*time.Second {
			t.Errorf("agent saw the end after %v, want 3s", got)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		synctest.Wait()
	})
}

// B10 and better: calls of one client run side by side, each with a connection of
// its own, and at most four connections stay for later.
func TestCallsConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open atomic.Int64
		peer := &pipePeer{}
		peer.serve = func(_ int, conn net.Conn, _ uint32) {
			open.Add(1)
			defer open.Add(-1)
			serveRPC(conn, pong(func(r wire.Request) string {
				var p wire.ExecParams
				if err := json.Unmarshal(r.Params, &p); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				return result(r, fmt.Sprintf(`{"exit_code":0,"stdout":%q,"stderr":""}`, p.Cmd))
			}))
		}
		c := connect(t, peer, nil)
		start := time.Now()
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				want := fmt.Sprint("command ", i)
				r, err := c.Exec(t.Context(), want, nil)
				if err != nil || r.Stdout != want {
					t.Errorf("got %v, %v, want %q", r, err, want)
				}
			})
		}
		wg.Wait()
		if got := time.Since(start); got != time.Second {
			t.Errorf("took %v, want 1s", got)
		}
		synctest.Wait()
		if got := open.Load(); got != 4 {
			t.Errorf("got %d connections kept, want 4", got)
		}
		_ = c.Close()
		synctest.Wait()
		if got := open.Load(); got != 0 {
			t.Errorf("got %d connections after Close, want 0", got)
		}
	})
}

// C4: an agent that serves one connection at a time, as seed 002 has it, is given
// one at a time, whoever calls, and another only after that has ended.
func TestSerialAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inline := make(chan struct{}, 1) // its accept loop
		peer := &pipePeer{serve: func(_ int, conn net.Conn, _ uint32) {
			inline <- struct{}{}
			defer func() { <-inline }()
			serveRPC(conn, pong(func(r wire.Request) string {
				if r.Method == wire.MethodReadFile {
					return ""
				}
				time.Sleep(time.Second)
				return result(r, `{"exit_code":0,"stdout":"","stderr":""}`)
			}))
		}}
		c := connect(t, peer, &bouvet.ClientOptions{Serial: true})
		start := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if _, err := c.Exec(t.Context(), "x", nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := time.Since(start); got != 10*time.Second || peer.dials() != 1 {
			t.Errorf("took %v and %d connections, want 10s and 1", got, peer.dials())
		}
		if _, err := c.ReadFile(t.Context(), "/x"); !errors.Is(err, bouvet.ErrRPC) {
			t.Errorf("got %v, want a response timeout", err)
		}
		if err := c.Ping(t.Context()); err != nil || peer.dials() != 2 {
			t.Errorf("after a timeout: %v, %d connections", err, peer.dials())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		go func() { _, _ = c.Exec(t.Context(), "x", nil) }()
		synctest.Wait()
		if err := c.Ping(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("behind another call: got %v, want DeadlineExceeded", err)
		}
		_ = c.Close()
		time.Sleep(time.Second)
		synctest.Wait()
	})
}

// Close ends calls under way and refuses later ones; it is idempotent.
func TestClientClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t, rpcPeer(pong(func(wire.Request) string { return "" })), nil)
		time.AfterFunc(time.Second, func() { _ = c.Close() })
		start := time.Now()
		if _, err := c.Exec(t.Context(), "x", nil); !errors.Is(err, net.ErrClosed) || time.Since(start) != time.Second {
			t.Errorf("got %v after %v, want ErrClosed after 1s", err, time.Since(start))
		}
		if err := c.Ping(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if err := c.Command(t.Context(), "x").Start(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// An idle connection that the agent closed is replaced without a call noticing.
func TestIdleConnectionLost(t *testing.T) {
	for _, kind := range []string{"pipe", "unix"} {
		t.Run(kind, func(t *testing.T) {
			closed := make(chan struct{})
			serve := func(n int, conn net.Conn) {
				if n > 0 {
					serveRPC(conn, pong(methodNotFound))
					return
				}
				defer close(closed)
				defer func() { _ = conn.Close() }()
				one := make([]byte, 4096)
				k, _ := conn.Read(one)
				req, _ := wire.DecodeRequest(one[:k])
				_, _ = fmt.Fprintln(conn, result(req, `{"pong":true}`))
			}
			var d bouvet.Dialer = &pipePeer{serve: func(n int, conn net.Conn, _ uint32) { serve(n, conn) }}
			if kind == "unix" {
				n := atomic.Int64{}
				d = hybridPeer(t, "OK 1\n", func(conn net.Conn) { serve(int(n.Add(1)-1), conn) })
			}
			c := connect(t, d, nil)
			<-closed
			// Not idempotent: it must not even be tried on the dead connection.
			if _, err := c.Exec(t.Context(), "x", nil); !errors.Is(err, bouvet.ErrRPC) {
				t.Errorf("got %v, want the answer of a fresh connection", err)
			}
		})
	}
}
