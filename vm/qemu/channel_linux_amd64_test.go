package qemu

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
)

func testChannel(t *testing.T) (*channel, net.Conn) {
	t.Helper()
	host, guest, err := socketPair("test")
	if err != nil {
		t.Fatal(err)
	}
	peer, err := net.FileConn(guest)
	_ = guest.Close()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newChannel(host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		_ = peer.Close()
	})
	return c, peer
}

// Nothing goes into a channel that is stopped, and nothing is lost, also of what a
// writer was in the middle of.
func TestChannelStops(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	c, peer := testChannel(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 256<<10) // more than the channel holds
	written := make(chan error, 1)
	go func() {
		n, err := c.Write(data)
		if err == nil && n != len(data) {
			err = io.ErrShortWrite
		}
		written <- err
	}()
	got := make([]byte, 4<<10)
	if _, err := io.ReadFull(peer, got); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := c.stop(); err != nil {
			t.Fatal(err)
		}
		// Its deadline, which the writer's user sets, is not what it waits for.
		if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		// All that is in there can be taken out, and no more comes.
		buf := make([]byte, len(data))
		if err := peer.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := io.ReadFull(peer, buf)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("got %d bytes, %v, want the end of what was in the channel", n, err)
		}
		got = append(got, buf[:n]...)
		if s, err := c.still(); err != nil || s.out != 0 || s.in != 0 {
			t.Errorf("got %+v, %v, want nothing in the channel", s, err)
		}
		if err := errors.Join(c.SetWriteDeadline(time.Time{}), peer.SetReadDeadline(time.Time{})); err != nil {
			t.Fatal(err)
		}
		c.resume()
		more := make([]byte, 4<<10)
		if _, err := io.ReadFull(peer, more); err != nil {
			t.Fatal(err)
		}
		got = append(got, more...)
	}
	rest := make([]byte, len(data)-len(got))
	if _, err := io.ReadFull(peer, rest); err != nil {
		t.Fatal(err)
	}
	if err := <-written; err != nil {
		t.Error(err)
	}
	if !bytes.Equal(append(got, rest...), data) {
		t.Error("something was lost")
	}
	// The other direction is counted.
	if _, err := peer.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	before, err := c.still()
	if err != nil || before.in != 3 {
		t.Errorf("got %+v, %v, want 3 bytes", before, err)
	}
	if _, err := io.ReadFull(c, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if after, err := c.still(); err != nil || after.in != 0 || after.received != before.received+3 {
		t.Errorf("got %+v, %v after %+v, want 3 bytes received", after, err, before)
	}
}

// Deadlines are the writer's own again when the channel goes on, and Close ends a
// writer that waits.
func TestChannelDeadlines(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	c, _ := testChannel(t)
	if err := c.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write after its deadline: got %v", err)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte("x"))
		written <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-written; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: got %v, want that it is closed", err)
	}
}

// What a process has changed in its private mapping, and nothing else, is copied.
func TestCopyChanged(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	const size = 512 * pageSize
	ram, err := newRAM(size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ram.Close() }()
	want := make([]byte, size)
	for _, at := range []int{0, 5 * pageSize, size - 1} {
		want[at] = 'a'
		if _, err := ram.WriteAt([]byte("a"), int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	private, err := unix.Mmap(int(ram.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(private) }()
	for at := 7 * pageSize; at < 400*pageSize; at += pageSize {
		want[at+7], private[at+7] = 'b', 'b'
	}
	want[0], private[0] = 0, 0
	if private[5*pageSize] != 'a' || private[450*pageSize] != 0 { // pages that are read are not changed
		t.Error("the mapping differs from the file")
	}
	dst, err := newRAM(size)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dst.Close() }()
	if err := copyChanged(t.Context(), dst, "/proc/self", ram); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{5 * pageSize, size - 1} { // not changed: not copied
		b := make([]byte, 1)
		if _, err := dst.ReadAt(b, at); err != nil || b[0] != 0 {
			t.Errorf("at %d: got %q, %v, want nothing", at, b, err)
		}
		if _, err := dst.WriteAt([]byte("a"), at); err != nil {
			t.Fatal(err)
		}
	}
	got := make([]byte, size)
	if _, err := dst.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs, %v", err)
	}
	if err := dst.Truncate(0); err == nil {
		t.Error("guest memory can be made smaller")
	}
	if err := copyChanged(t.Context(), dst, "/proc/self", dst); err == nil {
		t.Error("a file that is not mapped was copied")
	}
}
