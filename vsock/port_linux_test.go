package vsock_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

// ports are two ends of a device.
func ports(t *testing.T) (a, b vsock.Channel) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]vsock.Channel
	for i, fd := range fds {
		if ends[i], err = vsock.OpenPort(fd, "test"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	return ends[0], ends[1]
}

// What is written arrives, more than the device holds too; the end is the end.
func TestPort(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	a, b := ports(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10)
	wrote := make(chan error, 1)
	go func() {
		n, err := a.Write(data)
		if err == nil && n != len(data) {
			err = io.ErrShortWrite
		}
		wrote <- errors.Join(err, a.Close())
	}()
	got, err := io.ReadAll(io.LimitReader(b, int64(len(data))+1))
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if _, err := b.Write([]byte("x")); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a write to nobody: got %v", err)
	}
}

// Deadlines, those that come while somebody waits too, and Close end a wait, and an old
// deadline is no reason later.
func TestPortWaits(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	a, b := ports(t)
	fill := make([]byte, 8<<20)
	for name, wait := range map[string]func() error{
		"read":  func() error { _, err := a.Read(make([]byte, 1)); return err },
		"write": func() error { _, err := a.Write(fill); return err },
	} {
		for what, set := range map[string]time.Duration{"past": -time.Second, "soon": 30 * time.Millisecond} {
			result := make(chan error, 1)
			go func() { result <- wait() }()
			if err := a.SetDeadline(time.Now().Add(set)); err != nil {
				t.Fatal(err)
			}
			if err := soon(t, name+" "+what, result); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s, deadline %s: got %v", name, what, err)
			}
			if err := a.SetDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if n, err := a.Read(make([]byte, 4)); n != 1 || err != nil {
		t.Errorf("after the deadlines: got %d, %v", n, err)
	}
	results := make(chan error, 2)
	go func() { _, err := a.Read(make([]byte, 1)); results <- err }()
	go func() { _, err := a.Write(fill); results <- err }()
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := soon(t, "the end of a wait", results); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want that it is closed", err)
		}
	}
	for what, err := range map[string]error{"Close": a.Close(), "SetDeadline": a.SetDeadline(time.Time{})} {
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s after Close: got %v", what, err)
		}
	}
}
