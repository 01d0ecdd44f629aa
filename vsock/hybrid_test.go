package vsock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// against performs a handshake with a peer that plays script.
func against(t *testing.T, ctx context.Context, script string) (net.Conn, error) { //nolint:revive // t comes first in tests.
	t.Helper()
	c, err := wiretest.NewPeer(t, script).Dial(ctx, 52)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c, vsock.Handshake(ctx, c, 52)
}

func TestHandshake(t *testing.T) {
	const ask = "< ^CONNECT 52$\n"
	long := strings.Repeat("x", 60)
	for _, tc := range []struct{ name, answer, want string }{
		{"A5 the seed's", `>> OK 52\n`, ""},
		{"L1 Firecracker's", `>> OK 1073741824\n`, ""},
		{"L1 largest", `>> OK 4294967295\n`, ""},
		{"L1 too large", `>> OK 4294967296\n`, "handshake failed: OK 4294967296"},
		{"CRLF", `>> OK 52\r\n`, ""},
		{"A6 other reply", `>> ERROR nope\n`, "handshake failed: ERROR nope"},
		{"A6 OK alone", `>> OK\n`, "handshake failed: OK"},
		{"A6 two spaces", `>> OK  5\n`, "handshake failed: OK  5"},
		{"A6 leading space", `>>  OK 5\n`, "handshake failed:  OK 5"},
		{"A6 empty line", `>> \n`, "handshake failed: "},
		{"A6 JSON", `>> {"jsonrpc":"2.0"}\n`, `handshake failed: "{\"jsonrpc\":\"2.0\"}"`},
		{"T23 escape sequence", `>> \x1b[2J\n`, `handshake failed: "\x1b[2J"`},
		{"T23 return", `>> a\rb\n`, `handshake failed: "a\rb"`},
		{"no newline in 64 bytes", ">> OK 5" + strings.Repeat(" ", 60) + `\n`, "handshake failed: OK 5"},
		{"64 bytes with the newline", ">> OK 5" + strings.Repeat(" ", 59) + `\n`, ""},
		{"no newline ever", ">> " + long + long + "\nstall", "handshake failed: " + long + "xxxx"},
		{"cut off", `>> OK 5`, "handshake failed: OK 5"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			_, err := against(t, t.Context(), ask+tc.answer)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var he *vsock.HandshakeError
			if !errors.As(err, &he) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if strings.TrimRight(err.Error(), " ") != strings.TrimRight(tc.want, " ") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if len(he.Response) > wire.MaxHandshakeLine {
				t.Errorf("%d bytes of response", len(he.Response))
			}
		})
	}
}

// A8, 2.11 no. 8: whatever follows the newline, and however it comes, is the protocol's.
func TestHandshakeTakesNoMore(t *testing.T) {
	const answer = "OK 1073741824\n{}\n"
	for cut := range len(answer) + 1 {
		a, b := pipe(t)
		go func() {
			_, _ = io.WriteString(b, answer[:cut])
			_, _ = io.ReadFull(b, make([]byte, len(wire.ConnectLine(52))))
			_, _ = io.WriteString(b, answer[cut:])
			_ = b.CloseWrite()
		}()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := vsock.Handshake(ctx, a, 52); err != nil {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		cancel()
		if rest, err := io.ReadAll(a); string(rest) != "{}\n" || err != nil {
			t.Errorf("cut at %d: got %q, %v", cut, rest, err)
		}
	}
}

func TestHandshakeEnds(t *testing.T) {
	t.Run("L2 end before an answer", func(t *testing.T) {
		if _, err := against(t, t.Context(), "< CONNECT"); !errors.Is(err, vsock.ErrNotReady) {
			t.Errorf("got %v, want %v", err, vsock.ErrNotReady)
		}
	})
	t.Run("L2 reset before an answer", func(t *testing.T) {
		a, b := pipe(t)
		go func() {
			_, _ = b.Read(make([]byte, 1)) // what is left unread makes the close a reset
			_ = b.Close()
		}()
		if err := vsock.Handshake(t.Context(), a, 52); !errors.Is(err, vsock.ErrNotReady) {
			t.Errorf("got %v, want %v", err, vsock.ErrNotReady)
		}
	})
	t.Run("T20 deadline", func(t *testing.T) {
		testutil.Ledger(t, testutil.Scope{})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := against(t, ctx, "stall"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
	t.Run("T20 one byte a second", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, err := against(t, ctx, "drip 1s OK 52"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		a, b := pipe(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := result(func() error { return vsock.Handshake(ctx, a, 52) })
		_, _ = io.ReadFull(b, make([]byte, 11))
		cancel()
		if err := soon(t, "Handshake", done); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want %v", err, context.Canceled)
		}
	})
	t.Run("A7 write fails", func(t *testing.T) {
		a, b := pipe(t)
		_ = b.Close()
		err := vsock.Handshake(t.Context(), a, 52)
		if err == nil || !strings.HasPrefix(err.Error(), "handshake write failed: ") || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the context bounds the handshake alone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := wiretest.NewPeer(t, "< CONNECT 1\n> OK 1\n< go\n> gone").Dial(ctx, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := vsock.Handshake(ctx, c, 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		_, _ = io.WriteString(c, "go\n")
		if got, err := io.ReadAll(c); string(got) != "gone\n" || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		_ = c.Close()
	})
}

// listen serves path until the test ends.
func listen(t *testing.T, path string, handle func(c net.Conn, port uint32)) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, handle)
}

func TestHybrid(t *testing.T) { // A1 to A4, A8
	testutil.Ledger(t, testutil.Scope{})
	path := filepath.Join(t.TempDir(), "v.sock")
	listen(t, path, func(c net.Conn, port uint32) {
		_, _ = fmt.Fprintf(c, "port %d", port)
	})
	for _, port := range []uint32{wire.PortRPC, wire.PortExec} {
		c, err := vsock.Hybrid{Path: path}.Dial(t.Context(), port)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != fmt.Sprintf("port %d", port) || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		_ = c.Close()
	}
}

// A3: the socket's path may be longer than a socket address.
func TestHybridLongPath(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	for _, n := range []int{107, 108, 200} {
		dir := t.TempDir()
		for len(dir)+len("/v.sock")+1 < n {
			more := min(100, n-len(dir)-len("/v.sock")-1)
			dir = filepath.Join(dir, strings.Repeat("d", more))
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "v.sock")
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", fmt.Sprintf("/proc/self/fd/%d/v.sock", root.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		serve(t, l, echo)
		c, err := vsock.Hybrid{Path: path}.Dial(t.Context(), 52)
		if err != nil {
			t.Errorf("path of %d bytes: %v", len(path), err)
			continue
		}
		roundtrip(t, c, "long")
		_, _ = c.Close(), root.Close()
	}
}

func TestHybridFails(t *testing.T) { // A7, A10
	testutil.Ledger(t, testutil.Scope{})
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	silent := filepath.Join(dir, "silent.sock")
	l, err = net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("d", 120), "v.sock")
	for _, tc := range []struct {
		name, path string
		text       string
		cause      error
	}{
		{"no socket", filepath.Join(dir, "none.sock"), "socket connect failed: dial unix " + dir + "/none.sock: ", os.ErrNotExist},
		{"stale socket", stale, "socket connect failed: ", syscall.ECONNREFUSED},
		{"no socket but a file", file, "socket connect failed: ", syscall.ECONNREFUSED},
		{"no directory, long path", long, "socket connect failed: ", os.ErrNotExist},
		{"T20 no answer", silent, "handshake failed: ", context.DeadlineExceeded},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			c, err := vsock.Hybrid{Path: tc.path}.Dial(ctx, 52)
			if c != nil || !errors.Is(err, tc.cause) || !strings.HasPrefix(err.Error(), tc.text) {
				t.Errorf("got %v, want %q and %v", err, tc.text, tc.cause)
			}
		})
	}
}
