package vsock_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

// Types and flags of yamux's frames.
const (
	typeData, typeWindow, typePing, typeGoAway = 0, 1, 2, 3
	flagSYN, flagACK, flagFIN, flagRST         = 1, 2, 4, 8
)

func muxHeader(version, kind byte, flags uint16, id, n uint32) []byte {
	b := binary.BigEndian.AppendUint16([]byte{version, kind}, flags)
	b = binary.BigEndian.AppendUint32(b, id)
	return binary.BigEndian.AppendUint32(b, n)
}

// evilGuest is a guest that speaks the mux by hand.
type evilGuest struct {
	t    *testing.T
	conn *net.UnixConn
	r    *bufio.Reader
}

// newEvilGuest has agreed on a session with the returned mux.
func newEvilGuest(t *testing.T) (*evilGuest, *vsock.Mux) {
	t.Helper()
	host, guest := pipe(t)
	m := vsock.NewMux(host)
	t.Cleanup(func() { _ = m.Close() })
	g := &evilGuest{t: t, conn: guest, r: bufio.NewReader(guest)}
	_ = guest.SetReadDeadline(time.Now().Add(patience))
	for {
		verb, nonce, err := vsock.NextPreamble(g.r)
		if err != nil {
			t.Fatal(err)
		}
		if verb == vsock.VerbStart {
			verb = vsock.VerbGo
		}
		if err := vsock.WritePreamble(guest, verb, nonce); err != nil {
			t.Fatal(err)
		}
		if verb == vsock.VerbGo {
			return g, m
		}
	}
}

func (g *evilGuest) send(frames ...[]byte) {
	g.t.Helper()
	for _, f := range frames {
		if _, err := g.conn.Write(f); err != nil {
			g.t.Fatal(err)
		}
	}
}

// accept answers the handshake of the next stream and returns its number.
func (g *evilGuest) accept() uint32 {
	for {
		h := make([]byte, 12)
		if _, err := io.ReadFull(g.r, h); err != nil {
			g.t.Error(err)
			return 0
		}
		id, n := binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:])
		if h[1] == typeData {
			if _, err := io.CopyN(io.Discard, g.r, int64(n)); err != nil {
				g.t.Error(err)
			}
			g.send(muxHeader(0, typeWindow, flagACK, id, 0), muxHeader(0, typeData, 0, id, 5), []byte("OK 1\n"))
			return id
		}
	}
}

// dialled returns a conn whose other end the guest holds.
func (g *evilGuest) dialled(m *vsock.Mux) (net.Conn, uint32) {
	g.t.Helper()
	ids := result(g.accept)
	c := dial(g.t, m)
	return c, soon(g.t, "CONNECT", ids)
}

// T18, T19: what ends the session, though yamux would bear it. L23: streams that the
// guest opens among it, until something serves a guest.
func TestMuxRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		frame func(id uint32) []byte
	}{
		{"T19 a stream from the guest", func(uint32) []byte { return muxHeader(0, typeWindow, flagSYN, 2, 0) }},
		{"T19 a stream with the host's next number", func(id uint32) []byte { return muxHeader(0, typeWindow, flagSYN, id+2, 0) }},
		{"T19 the same stream again", func(id uint32) []byte { return muxHeader(0, typeWindow, flagSYN, id, 0) }},
		{"T19 a stream opened with data", func(uint32) []byte { return append(muxHeader(0, typeData, flagSYN, 2, 1), 'x') }},
		{"a ping", func(uint32) []byte { return muxHeader(0, typePing, flagSYN, 0, 1) }},
		{"T18 data of 4 GiB", func(id uint32) []byte { return muxHeader(0, typeData, 0, id, 0xFFFFFFFF) }},
		{"T18 data of one byte too many", func(id uint32) []byte { return muxHeader(0, typeData, 0, id, vsock.MaxMuxData+1) }},
		{"T18 data of 4 GiB for no stream", func(uint32) []byte { return muxHeader(0, typeData, 0, 77, 0xFFFFFFFF) }},
		{"T18 unknown type", func(id uint32) []byte { return muxHeader(0, 4, 0, id, 0) }},
		{"T18 unknown version", func(id uint32) []byte { return muxHeader(1, typeData, 0, id, 0) }},
		{"go away", func(uint32) []byte { return muxHeader(0, typeGoAway, 0, 0, 0) }},
		{"text", func(uint32) []byte { return []byte("Segmentation fault\n") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			g, m := newEvilGuest(t)
			c, id := g.dialled(m)
			g.send(tc.frame(id))
			soon(t, "the end of the session", m.Done())
			if _, err := c.Read(make([]byte, 1)); !isClosedError(err) {
				t.Errorf("Read: got %v", err)
			}
			if _, err := m.Dial(t.Context(), 1); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Dial: got %v, want %v", err, net.ErrClosed)
			}
			_ = m.Close()
		})
	}
}

// T09: a guest may send 256 KiB ahead of the host's reader, and not more.
func TestMuxAhead(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	c, id := g.dialled(m) // whose OK has been read
	frame := append(muxHeader(0, typeData, 0, id, vsock.MaxMuxData), make([]byte, vsock.MaxMuxData)...)
	for range 3 {
		g.send(frame)
	}
	// With the rest of the window all is well.
	_ = c.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadFull(c, make([]byte, 3*vsock.MaxMuxData)); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(io.Discard, g.r) }()
	for range 5 {
		if _, err := g.conn.Write(frame); err != nil {
			break
		}
	}
	soon(t, "the end of the session", m.Done())
	_ = m.Close()
	_ = g.conn.Close()
}

// A guest that sends more than the window allows.
func TestMuxWindow(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	_, id := g.dialled(m)
	go func() { _, _ = io.Copy(io.Discard, g.r) }()
	frame := append(muxHeader(0, typeData, 0, id, vsock.MaxMuxData), make([]byte, vsock.MaxMuxData)...)
	for range 64 {
		if _, err := g.conn.Write(frame); err != nil {
			break
		}
	}
	soon(t, "the end of the session", m.Done())
	_ = m.Close()
	_ = g.conn.Close()
}

// T20: a guest that stops in the middle of a frame hangs nobody who has a deadline,
// and no Close.
func TestMuxHalfFrame(t *testing.T) {
	header := muxHeader(0, typeData, 0, 1, 60000)
	for n := 1; n <= len(header)+1; n++ {
		t.Run("after "+string(rune('a'+n-1)), func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			g, m := newEvilGuest(t)
			c, _ := g.dialled(m)
			g.send(append(header, 'x')[:n])
			if n > len(header) {
				// What has come of the frame is there at once.
				_ = c.SetReadDeadline(time.Now().Add(patience))
				if n, err := c.Read(make([]byte, 10)); n != 1 || err != nil {
					t.Errorf("got %d bytes, %v, want 1", n, err)
				}
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
			read := result(func() error { _, err := c.Read(make([]byte, 10)); return err })
			if err := soon(t, "Read", read); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Read: got %v, want %v", err, os.ErrDeadlineExceeded)
			}
			_ = c.SetReadDeadline(time.Time{})
			read = result(func() error { _, err := c.Read(make([]byte, 10)); return err })
			_ = soon(t, "Close", result(c.Close))
			if err := soon(t, "Read", read); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Read: got %v, want %v", err, net.ErrClosed)
			}
			_ = soon(t, "Close of the mux", result(m.Close))
		})
	}
}

// T20: a guest that no longer reads its channel hangs nobody who has a deadline.
func TestMuxGuestStopsReading(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	c, id := g.dialled(m)
	other, otherID := g.dialled(m)
	// A window so large that only the channel stops the writer.
	g.send(muxHeader(0, typeWindow, 0, id, 1<<30))
	_ = c.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	before := heap()
	wrote := result(func() error {
		for {
			if _, err := c.Write(make([]byte, 1<<20)); err != nil {
				return err
			}
		}
	})
	if err := soon(t, "Write", wrote); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Write: got %v, want %v", err, os.ErrDeadlineExceeded)
	}
	if after := heap(); after > before+8<<20 {
		t.Errorf("%d bytes are held for a guest that does not read", after-before)
	}

	// The window's updates have no way out, and yet what the guest says is read.
	g.send(append(muxHeader(0, typeData, 0, otherID, vsock.MaxMuxData), make([]byte, vsock.MaxMuxData)...))
	_ = other.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(other, make([]byte, vsock.MaxMuxData)); err != nil {
		t.Errorf("Read: got %d bytes, %v", n, err)
	}
	_ = other.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if _, err := other.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Read: got %v, want %v", err, os.ErrDeadlineExceeded)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	dialled := result(func() error { _, err := m.Dial(ctx, 1); return err })
	if err := soon(t, "Dial", dialled); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Dial: got %v, want %v", err, context.DeadlineExceeded)
	}
	wrote = result(func() error { _, err := other.Write(make([]byte, 1<<20)); return err })
	_ = soon(t, "Close", result(other.Close))
	if err := soon(t, "Write", wrote); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write: got %v, want %v", err, net.ErrClosed)
	}
	_ = soon(t, "Close of the mux", result(m.Close))
}

// T20: a guest that never accepts: hundreds of dials end with their contexts.
func TestMuxNeverAccepts(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	go func() { _, _ = io.Copy(io.Discard, g.r) }()
	_ = g.conn.SetReadDeadline(time.Time{})
	const dials = 400 // more than yamux has slots for
	ctx, cancel := context.WithCancel(t.Context())
	errs := make(chan error, dials)
	for range dials {
		go func() {
			_, err := m.Dial(ctx, 1)
			errs <- err
		}()
	}
	cancel()
	for range dials {
		if err := soon(t, "Dial", errs); !errors.Is(err, context.Canceled) {
			t.Fatalf("got %v, want %v", err, context.Canceled)
		}
	}
	_ = soon(t, "Close", result(m.Close))
	_ = g.conn.Close()
}

// A guest that goes on sending on streams that the host has closed takes no memory.
func TestMuxClosedStreamsHoldNothing(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	frame := make([]byte, vsock.MaxMuxData)
	before := heap()
	for range 40 {
		c, id := g.dialled(m)
		_ = c.Close()
		for range 15 {
			g.send(muxHeader(0, typeData, 0, id, vsock.MaxMuxData), frame)
		}
	}
	// A stream after all that shows that it has been read.
	g.dialled(m)
	if after := heap(); after > before+10<<20 {
		t.Errorf("%d bytes are held for closed streams", after-before)
	}
	_ = m.Close()
}

// T09: what a guest has sent before the host closed a stream is not held on to
// while that stream waits for the guest to close it, too.
func TestMuxUnreadIsDropped(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	g, m := newEvilGuest(t)
	frame := make([]byte, vsock.MaxMuxData)
	before := heap()
	for range 40 {
		c, id := g.dialled(m)
		for range 3 { // most of a window
			g.send(muxHeader(0, typeData, 0, id, vsock.MaxMuxData), frame)
		}
		// A stream after it shows that all has been read.
		marker, markerID := g.dialled(m)
		g.send(muxHeader(0, typeData, 0, markerID, 1), []byte("x"))
		_ = marker.SetReadDeadline(time.Now().Add(patience))
		if _, err := marker.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		_ = marker.Close()
		_ = c.Close()
	}
	if after := heap(); after > before+2<<20 {
		t.Errorf("%d bytes are held for closed streams", after-before)
	}
	_ = m.Close()
}

func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
