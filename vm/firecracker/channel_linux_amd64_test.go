package firecracker

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vsock"
)

// muxed is a channel to a Firecracker that answers its n-th connection, from 0 on,
// with what serve does.
func muxed(t *testing.T, serve func(n int, conn net.Conn)) *channel {
	t.Helper()
	var n atomic.Int64
	c := newChannel(func(context.Context) (net.Conn, error) {
		ours, theirs := net.Pipe()
		i := int(n.Add(1)) - 1
		go func() {
			line := make([]byte, 32)
			// In one piece, or it is dropped.
			if got, err := theirs.Read(line); err != nil || string(line[:got]) != "CONNECT 52\n" {
				t.Errorf("got %q, %v", line[:got], err)
			}
			serve(i, theirs)
		}()
		return ours, nil
	})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// The quirks of the hybrid socket: the port is another one, the line may come in
// pieces, and what is behind it is the guest's.
func TestChannelAnswers(t *testing.T) {
	for name, pieces := range map[string][]string{
		"whole": {"OK 1073741824\n", "hello"},
		"split": {"O", "K 10737", "41824", "\n", "hello"},
		"glued": {"OK 1073741824\nhello"},
	} {
		t.Run(name, func(t *testing.T) {
			c := muxed(t, func(_ int, conn net.Conn) {
				for _, p := range pieces {
					_, _ = io.WriteString(conn, p)
				}
			})
			conn, err := c.Dial(t.Context(), 52)
			if err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(conn, got); err != nil || string(got) != "hello" {
				t.Errorf("got %q, %v", got, err)
			}
			if _, ok := conn.(interface{ CloseWrite() error }); ok {
				t.Error("a stream offers to close one direction, which closes both")
			}
			if err := conn.Close(); err != nil || len(c.streams) != 0 {
				t.Errorf("Close: %v, %d streams are left", err, len(c.streams))
			}
		})
	}
}

func TestChannelRefusals(t *testing.T) {
	for _, tt := range []struct {
		name  string
		serve func(conn net.Conn)
		is    error
		want  string
	}{
		{"nobody listens", func(conn net.Conn) { _ = conn.Close() }, vsock.ErrNotReady, "not listening"},
		{"nonsense", func(conn net.Conn) { _, _ = io.WriteString(conn, "HTTP/1.1 400\n"); _ = conn.Close() }, nil, "handshake failed"},
		{"endless line", func(conn net.Conn) { _, _ = io.Copy(conn, endless{}) }, nil, "handshake failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := muxed(t, func(_ int, conn net.Conn) { tt.serve(conn) })
			_, err := c.Dial(t.Context(), 52)
			wantError(t, "Dial", err, tt.want)
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
}

// A request that gets no answer is made again: the guest was not up, or has lost it.
func TestChannelTriesAgain(t *testing.T) {
	c := muxed(t, func(n int, conn net.Conn) {
		if n == 2 {
			_, _ = io.WriteString(conn, "OK 1073741826\n")
		}
	})
	conn, err := c.Dial(t.Context(), 52)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	c = muxed(t, func(int, net.Conn) {})
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, io.ErrNoProgress)
	defer cancel()
	if _, err := c.Dial(ctx, 52); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got %v, want the context's cause", err)
	}
}

// The end of Firecracker is seen by its socket, and ends the streams; so does a
// snapshot, after which there are new ones.
func TestChannelEnds(t *testing.T) {
	for _, gone := range []error{syscall.ECONNREFUSED, fs.ErrNotExist} {
		c := newChannel(func(context.Context) (net.Conn, error) { return nil, gone })
		if _, err := c.Dial(t.Context(), 52); !errors.Is(err, gone) {
			t.Errorf("got %v, want %v", err, gone)
		}
		<-c.Done()
	}
	c := muxed(t, func(_ int, conn net.Conn) { _, _ = io.WriteString(conn, "OK 1\n") })
	for range 2 {
		conn, err := c.Dial(t.Context(), 52)
		if err != nil {
			t.Fatal(err)
		}
		c.reset()
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a stream outlived its reset")
		}
	}
	_ = c.Close()
	if _, err := c.Dial(t.Context(), 52); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Dial after Close: got %v", err)
	}
}

// T09: there is an end to the streams of one machine.
func TestChannelBound(t *testing.T) {
	c := muxed(t, func(_ int, conn net.Conn) { _, _ = io.WriteString(conn, "OK 1\n") })
	for range maxStreams {
		if _, err := c.Dial(t.Context(), 52); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Dial(t.Context(), 52); !errors.Is(err, errManyStreams) {
		t.Errorf("got %v, want errManyStreams", err)
	}
	c.reset()
	if _, err := c.Dial(t.Context(), 52); err != nil {
		t.Errorf("after a reset: %v", err)
	}
}
