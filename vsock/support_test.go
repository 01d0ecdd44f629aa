package vsock_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// patience is how long anything that should happen at once may take on a busy
// machine.
const patience = 20 * time.Second

// pipe returns a connected pair of unix sockets, closed when the test ends.
func pipe(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	a, b, err := wiretest.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = a.Close()
		_ = b.Close()
	})
	return a, b
}

// dup returns another descriptor of the same socket, as a process has that takes a
// channel over.
func dup(t *testing.T, c *net.UnixConn) *net.UnixConn {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	d, err := net.FileConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d.(*net.UnixConn)
}

// serve answers the CONNECT line of each stream and gives it to handle, until the
// listener has ended.
func serve(t *testing.T, l net.Listener, handle func(c net.Conn, port uint32)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				lines := wire.NewLineReader(c, wire.MaxHandshakeLine, nil)
				line, err := lines.ReadLine()
				if err != nil {
					return
				}
				port, ok := wire.ParseConnect(line)
				if !ok {
					return
				}
				if _, err := io.WriteString(c, wire.OKLine(port)); err == nil {
					handle(c, port)
				}
			}()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
}

func echo(c net.Conn, _ uint32) { _, _ = io.Copy(c, c) }

// newMux returns a host's mux whose guest gives each stream to handle.
func newMux(t *testing.T, handle func(c net.Conn, port uint32)) *vsock.Mux {
	t.Helper()
	host, guest := pipe(t)
	serve(t, vsock.NewMuxListener(guest), handle)
	m := vsock.NewMux(host)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func dial(t *testing.T, m *vsock.Mux) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := m.Dial(ctx, wire.PortRPC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// roundtrip fails unless c echoes.
func roundtrip(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != text {
		t.Fatalf("got %q, %v, want %q", got, err, text)
	}
	_ = c.SetDeadline(time.Time{})
}

// soon waits for what should happen at once.
func soon[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: nothing within %v", what, patience)
		panic("unreachable")
	}
}

// result runs f in the background.
func result[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

func isClosedError(err error) bool {
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE)
}
