package vsock_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// newLane is a lane whose guest does that with each stream.
func newLane(t *testing.T, handle func(c net.Conn, port uint32)) *vsock.Lane {
	t.Helper()
	host, guest := pipe(t)
	l := vsock.NewLane(host)
	serve(t, vsock.NewLaneListener(guest), handle)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// dialLane waits for its turn.
func dialLane(t *testing.T, l *vsock.Lane) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		c, err := l.Dial(ctx, wire.PortRPC)
		if err == nil {
			return c
		}
		if !errors.Is(err, vsock.ErrLaneBusy) || ctx.Err() != nil {
			t.Fatal(err)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func TestLaneIsAConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		accepted := make(chan net.Conn, 1)
		release := make(chan struct{})
		l := newLane(t, func(c net.Conn, _ uint32) { accepted <- c; <-release })
		c1 = dialLane(t, l)
		c2 = <-accepted
		return c1, c2, func() {
			_ = c1.Close()
			_ = c2.Close()
			close(release)
			_ = l.Close()
		}, nil
	})
}

// A lane carries one stream after the other, each whole, whatever its length and
// whoever ends it.
func TestLaneStreams(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	l := newLane(t, echo)
	for _, n := range []int{0, 1, 4095, 4096, 256 << 10, 256<<10 + 1, 5<<20 + 3} {
		c := dialLane(t, l)
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		sent, got := sha256.New(), sha256.New()
		wrote := make(chan error, 1)
		go func() {
			_, err := io.CopyN(io.MultiWriter(c, sent), rand.NewChaCha8([32]byte{1}), int64(n))
			wrote <- err
		}()
		if m, err := io.CopyN(got, c, int64(n)); err != nil {
			t.Fatalf("%d of %d bytes: %v", m, n, err)
		}
		if err := <-wrote; err != nil || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Errorf("%d bytes: %v, or they differ", n, err)
		}
		if _, err := l.Dial(t.Context(), wire.PortRPC); !errors.Is(err, vsock.ErrLaneBusy) {
			t.Errorf("a second stream: got %v", err)
		}
		_ = c.Close()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.Dial(t.Context(), wire.PortRPC); err == nil {
		t.Error("a lane that is closed was dialled")
	}
}

// A stream that is given up in the middle, by whichever side and in whatever direction
// it flows, is told to the other and leaves the lane to the next.
func TestLaneGivenUp(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	flood := func(c net.Conn) error {
		block := bytes.Repeat([]byte("x"), 1<<20)
		for {
			if _, err := c.Write(block); err != nil {
				return err
			}
		}
	}
	ended := make(chan error, 1)
	for name, tt := range map[string]struct {
		guest func(c net.Conn)
		host  func(c net.Conn) error
	}{
		"host, that reads":  {func(c net.Conn) { ended <- flood(c) }, func(c net.Conn) error { _, err := io.CopyN(io.Discard, c, 3<<20+1); return err }},
		"host, that writes": {func(c net.Conn) { _, err := io.Copy(io.Discard, c); ended <- err }, func(c net.Conn) error { _, err := c.Write(make([]byte, 1<<20)); return err }},
		"host, that waits":  {func(c net.Conn) { _, err := c.Read(make([]byte, 1)); ended <- err }, func(net.Conn) error { return nil }},
		"guest, that reads": {func(c net.Conn) { _, err := io.CopyN(io.Discard, c, 1<<20); ended <- err }, func(c net.Conn) error { _, err := c.Write(make([]byte, 8<<20)); return err }},
		"guest, that writes": {func(c net.Conn) { _, err := c.Write(make([]byte, 1<<20)); ended <- err }, func(c net.Conn) error {
			if n, err := io.Copy(io.Discard, c); n != 1<<20 || err != nil {
				return errors.Join(errors.New("the stream has another length"), err)
			}
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			guest := tt.guest
			l := newLane(t, func(c net.Conn, port uint32) {
				if port == wire.PortExec {
					echo(c, port)
					return
				}
				guest(c)
			})
			for range 3 {
				c := dialLane(t, l)
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				if err := tt.host(c); err != nil {
					t.Error(err)
				}
				_ = c.Close()
				_ = soon(t, "the end of the guest's part", ended)
			}
		})
	}
}

// T20: a guest that does not agree on a stream costs one attempt, and no more is tried.
func TestLaneNobody(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	host, guest := pipe(t)
	l := vsock.NewLane(host)
	go func() { _, _ = io.Copy(io.Discard, guest) }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := l.Dial(ctx, wire.PortRPC); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if _, err := l.Dial(t.Context(), wire.PortRPC); !errors.Is(err, vsock.ErrLaneBusy) {
		t.Errorf("while it is agreed on: got %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	_ = guest.Close()
}
