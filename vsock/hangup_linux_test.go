package vsock_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

func TestAwaitHangup(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(ours, theirs *net.UnixConn)
		want bool
	}{
		{"the peer closes", func(_, theirs *net.UnixConn) { _ = theirs.Close() }, true},
		{"the read deadline strikes", func(ours, _ *net.UnixConn) { _ = ours.SetReadDeadline(time.Unix(1, 0)) }, false},
		{"the stream is closed", func(ours, _ *net.UnixConn) { _ = ours.Close() }, false},
	} {
		t.Run("2.10 half-close, then "+tc.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			ours, theirs := pipe(t)
			if _, err := io.WriteString(theirs, "last words"); err != nil {
				t.Fatal(err)
			}
			if err := theirs.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(ours); string(got) != "last words" || err != nil {
				t.Fatal(string(got), err)
			}
			gone := result(func() bool { return vsock.AwaitHangup(ours) })
			select {
			case <-gone:
				t.Fatal("a half-close counts as gone")
			case <-time.After(30 * time.Millisecond):
			}
			// The other direction still works, and wakes nobody for good.
			if _, err := io.WriteString(ours, "answer"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(theirs, make([]byte, 6)); err != nil {
				t.Fatal(err)
			}
			tc.end(ours, theirs)
			if got := soon(t, "AwaitHangup", gone); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("already gone", func(t *testing.T) {
		ours, theirs := pipe(t)
		_ = theirs.Close()
		if !vsock.AwaitHangup(ours) {
			t.Error("got false, want true")
		}
	})
	t.Run("a stream that cannot tell counts as gone", func(t *testing.T) {
		ours, _ := net.Pipe()
		if !vsock.AwaitHangup(ours) {
			t.Error("got false, want true")
		}
	})
	t.Run("T15 a mux stream, behind what is unread", func(t *testing.T) {
		gone := make(chan bool, 1)
		m := newMux(t, func(c net.Conn, _ uint32) { gone <- vsock.AwaitHangup(c) })
		c := dial(t, m)
		if _, err := c.Write(make([]byte, 200<<10)); err != nil { // most of a window
			t.Fatal(err)
		}
		_ = c.Close()
		if !<-gone {
			t.Error("got false, want true")
		}
	})
	t.Run("a mux stream, whose peer stays", func(t *testing.T) {
		c := dial(t, newMux(t, echo))
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if vsock.AwaitHangup(c) {
			t.Error("got true before the deadline, want false")
		}
		gone := make(chan bool, 1)
		_ = c.SetReadDeadline(time.Time{})
		go func() { gone <- vsock.AwaitHangup(c) }()
		_ = c.Close()
		if <-gone {
			t.Error("got true for a stream that we closed, want false")
		}
	})
	t.Run("a mux stream, whose session ends", func(t *testing.T) {
		gone := make(chan bool, 1)
		m := newMux(t, func(c net.Conn, _ uint32) { gone <- vsock.AwaitHangup(c) })
		_ = dial(t, m)
		_ = m.Close()
		if !<-gone {
			t.Error("got false, want true")
		}
	})
}
