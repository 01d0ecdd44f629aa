package bouvet_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

type dialFunc func(ctx context.Context, port uint32) (net.Conn, error)

func (f dialFunc) Dial(ctx context.Context, port uint32) (net.Conn, error) { return f(ctx, port) }

// A9, A11, L3, K8, 2.11 no. 2: the first attempt at once, early polls close together,
// none more than 100 ms apart, 10 s in all, then AgentTimeout.
func TestConnectSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		refused := &net.OpError{Op: "dial", Net: "unix", Err: syscall.ECONNREFUSED}
		_, err := bouvet.Connect(t.Context(), dialFunc(func(_ context.Context, port uint32) (net.Conn, error) {
			if port != 52 { // A1
				t.Errorf("got port %d, want 52", port)
			}
			at = append(at, time.Since(start))
			return nil, fmt.Errorf("socket connect failed: %w", refused)
		}), nil)
		var timeout *bouvet.AgentTimeoutError
		if !errors.As(err, &timeout) || timeout.Timeout != 10*time.Second || !errors.Is(err, bouvet.ErrAgentTimeout) {
			t.Fatalf("got %v, want AgentTimeout of 10s", err)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // A10: refused differs from silent
			t.Errorf("got %v, want it to say that the connection was refused", err)
		}
		if got := time.Since(start); got != 10*time.Second {
			t.Errorf("took %v, want 10s", got)
		}
		if timeout.Attempts != len(at) {
			t.Errorf("got %d attempts told, %d made", timeout.Attempts, len(at))
		}
		want := []time.Duration{0, 1, 3, 8, 18, 38, 88, 188, 288}
		for i := range want {
			want[i] *= time.Millisecond
		}
		if got := at[:len(want)]; !slices.Equal(got, want) {
			t.Errorf("attempts at %v, want %v", got, want)
		}
		for i := 1; i < len(at); i++ {
			if gap := at[i] - at[i-1]; gap > 100*time.Millisecond {
				t.Errorf("attempts %d and %d are %v apart", i-1, i, gap)
			}
		}
	})
}

// A9, K8, L4: the agent comes up late.
func TestConnectLateAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		peer := rpcPeer(pong(methodNotFound))
		c := connect(t, dialFunc(func(ctx context.Context, port uint32) (net.Conn, error) {
			if time.Since(start) < 5*time.Second {
				return nil, vsock.ErrNotReady
			}
			return peer.Dial(ctx, port)
		}), nil)
		if got := time.Since(start); got < 5*time.Second || got > 5*time.Second+100*time.Millisecond {
			t.Errorf("connected after %v, want at most 100ms after the agent came up", got)
		}
		if err := c.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		_ = c.Close()
		synctest.Wait()
	})
}

// Readiness is an answered ping: an agent that takes connections and says nothing
// is not ready, and one that forgets the first connections is reached.
func TestConnectSilentAgent(t *testing.T) {
	t.Run("for good", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			peer := rpcPeer(func(wire.Request) string { return "" })
			start := time.Now()
			_, err := bouvet.Connect(t.Context(), peer, nil)
			if !errors.Is(err, bouvet.ErrAgentTimeout) || time.Since(start) != 10*time.Second {
				t.Errorf("got %v after %v, want AgentTimeout after 10s", err, time.Since(start))
			}
		})
	})
	t.Run("at first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			peer := &pipePeer{serve: func(n int, conn net.Conn, _ uint32) {
				if n < 2 {
					serveRPC(conn, func(wire.Request) string { return "" })
				}
				serveRPC(conn, pong(methodNotFound))
			}}
			start := time.Now()
			c := connect(t, peer, nil)
			if got := time.Since(start); got > 3100*time.Millisecond {
				t.Errorf("took %v, want attempts of 1s and 2s", got)
			}
			_ = c.Close()
			synctest.Wait()
		})
	})
}

// A10: what no later attempt can mend ends Connect at once.
func TestConnectEndsAtOnce(t *testing.T) {
	for _, tt := range []struct {
		name   string
		dialer bouvet.Dialer
		want   []error
	}{
		{"machine gone", dialFunc(func(context.Context, uint32) (net.Conn, error) {
			return nil, fmt.Errorf("cannot dial: %w", vm.ErrGone)
		}), []error{bouvet.ErrVM, vm.ErrGone}},
		{"RPC error", rpcPeer(func(r wire.Request) string { return rpcFailure(r, -32603, "broken") }), []error{bouvet.ErrRPC}},
		{"not JSON", rpcPeer(func(wire.Request) string { return "SSH-2.0-OpenSSH" }), []error{bouvet.ErrJSON}},
		{"no pong", rpcPeer(func(r wire.Request) string { return result(r, "{}") }), []error{bouvet.ErrJSON}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				_, err := bouvet.Connect(t.Context(), tt.dialer, nil)
				for _, want := range tt.want {
					if !errors.Is(err, want) {
						t.Errorf("got %v, want %v", err, want)
					}
				}
				if got := time.Since(start); got != 0 {
					t.Errorf("took %v, want an end at once", got)
				}
				if errors.Is(err, bouvet.ErrAgentTimeout) {
					t.Errorf("%v is an agent timeout", err)
				}
			})
		})
	}
}

func TestConnectCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(700*time.Millisecond, cancel)
		start := time.Now()
		_, err := bouvet.Connect(ctx, rpcPeer(func(wire.Request) string { return "" }), nil)
		if !errors.Is(err, context.Canceled) || time.Since(start) != 700*time.Millisecond {
			t.Errorf("got %v after %v, want Canceled after 700ms", err, time.Since(start))
		}
	})
}

// hybridPeer listens on a unix socket as Firecracker does, and answers the
// CONNECT line with reply; with "" it closes.
func hybridPeer(t *testing.T, reply string, then func(net.Conn)) vsock.Hybrid {
	t.Helper()
	path := filepath.Join(t.TempDir(), "v.sock") // A3
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				line := make([]byte, len("CONNECT 52\n"))
				if _, err := conn.Read(line); err != nil || string(line) != "CONNECT 52\n" { // A4
					t.Errorf("got %q, %v, want the CONNECT line alone", line, err)
				}
				if _, err := conn.Write([]byte(reply)); err == nil && then != nil {
					then(conn)
				}
			}()
		}
	}()
	return vsock.Hybrid{Path: path}
}

// A5, A8, L1: any number acknowledges, and the same stream goes on.
func TestConnectThroughHybridSocket(t *testing.T) {
	for _, ok := range []string{"OK 52\n", "OK 1073741824\n"} {
		d := hybridPeer(t, ok, func(conn net.Conn) { serveRPC(conn, pong(methodNotFound)) })
		c := connect(t, d, nil)
		if err := c.Ping(t.Context()); err != nil { // K2
			t.Errorf("%q: %v", ok, err)
		}
	}
}

// A6, A7, L2, L4: the texts of seed 000, and another time to connect.
func TestConnectTexts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		dialer bouvet.Dialer
		text   string
		is     error
	}{
		{"A6 refused handshake", hybridPeer(t, "NO\n", nil), "connection failed: handshake failed: NO", bouvet.ErrConnection},
		{"A7 no socket", vsock.Hybrid{Path: filepath.Join(t.TempDir(), "none")}, "connection failed: socket connect failed: ", os.ErrNotExist},
		{"L2 nobody listens in the guest", hybridPeer(t, "", nil), "connection failed: handshake failed: guest is not listening", vsock.ErrNotReady},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := bouvet.Connect(t.Context(), tt.dialer, &bouvet.ClientOptions{ConnectTimeout: 50 * time.Millisecond})
			var timeout *bouvet.AgentTimeoutError
			if !errors.As(err, &timeout) {
				t.Fatalf("got %v, want AgentTimeout", err)
			}
			if got := timeout.Last.Error(); len(got) < len(tt.text) || got[:len(tt.text)] != tt.text {
				t.Errorf("got %q, want %q", got, tt.text)
			}
			if !errors.Is(err, tt.is) {
				t.Errorf("got %v, want it to match %v", err, tt.is)
			}
		})
	}
}

// An agent of cleanroom's has no JSON-RPC port.
func TestConnectExecOnly(t *testing.T) {
	peer := &pipePeer{serve: func(_ int, _ net.Conn, port uint32) {
		if port != wire.PortExec {
			t.Errorf("got port %d, want %d", port, wire.PortExec)
		}
	}}
	c := connect(t, peer, &bouvet.ClientOptions{ExecOnly: true})
	info, err := c.Info(t.Context())
	if err != nil || len(info.Capabilities) != 0 {
		t.Errorf("got %v, %v, want no capability", info, err)
	}
	if peer.dials() != 1 {
		t.Errorf("got %d dials, want 1", peer.dials())
	}
}
