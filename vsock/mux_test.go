package vsock_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/creack/pty"
	"golang.org/x/net/nettest"
	"golang.org/x/term"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

func TestMuxStreams(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	for _, tc := range []struct {
		name           string
		streams, bytes int
	}{
		{"one stream of 64 MiB", 1, 64 << 20},
		{"50 streams of 1 MiB", 50, 1<<20 + 7},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := newMux(t, echo)
			var streams sync.WaitGroup
			for i := range tc.streams {
				c := dial(t, m)
				_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
				streams.Go(func() {
					sent := sha256.New()
					go func() {
						src := rand.NewChaCha8([32]byte{byte(i)})
						_, _ = io.CopyN(io.MultiWriter(c, sent), src, int64(tc.bytes))
					}()
					got := sha256.New()
					if n, err := io.CopyN(got, c, int64(tc.bytes)); err != nil {
						t.Errorf("stream %d: %d of %d bytes, %v", i, n, tc.bytes, err)
						return
					}
					want := sha256.New()
					_, _ = io.CopyN(want, rand.NewChaCha8([32]byte{byte(i)}), int64(tc.bytes))
					if string(got.Sum(nil)) != string(want.Sum(nil)) {
						t.Errorf("stream %d: the bytes differ", i)
					}
				})
			}
			streams.Wait()
		})
	}
}

func TestMuxConn(t *testing.T) {
	nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
		host, guest := pipe(t)
		l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
		stop := func() {
			_ = m.Close()
			_ = l.Close()
		}
		accepted := make(chan net.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = wire.NewLineReader(byteReader{c}, wire.MaxHandshakeLine, nil).ReadLine()
			_, _ = io.WriteString(c, "OK 1\n")
			accepted <- c
		}()
		c, err := m.Dial(t.Context(), 1)
		if err != nil {
			stop()
			return nil, nil, nil, err
		}
		return c, <-accepted, stop, nil
	})
}

// byteReader reads no further than it must.
type byteReader struct{ io.Reader }

func (r byteReader) Read(b []byte) (int, error) { return r.Reader.Read(b[:min(1, len(b))]) }

func TestMuxAddr(t *testing.T) {
	c := dial(t, newMux(t, echo))
	if c.LocalAddr().Network() != "mux" || c.RemoteAddr().String() != "mux" {
		t.Errorf("got %v and %v", c.LocalAddr(), c.RemoteAddr())
	}
}

// J9: a stream that nobody reads holds up no other.
func TestMuxSlowReader(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	flooding := make(chan struct{})
	m := newMux(t, func(c net.Conn, port uint32) {
		if port != wire.PortExec {
			echo(c, port)
			return
		}
		chunk := make([]byte, 1<<20)
		for {
			_ = c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err := c.Write(chunk); err != nil {
				close(flooding) // the window is full
				return
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	slow, err := m.Dial(ctx, wire.PortExec)
	if err != nil {
		t.Fatal(err)
	}
	soon(t, "a full window", flooding)
	for range 3 {
		roundtrip(t, dial(t, m), "quick")
	}
	_ = slow.SetReadDeadline(time.Now().Add(patience))
	if n, err := io.ReadFull(slow, make([]byte, 200<<10)); err != nil {
		t.Errorf("the slow stream lost its bytes: %d, %v", n, err)
	}
	_ = slow.Close()
}

// A host that is slow to read the end of an output still gets it: no clock resets
// the stream.
func TestMuxSlowEnd(t *testing.T) {
	// yamux keeps timers in a global pool, which a bubble must share with no other
	// test: it runs in a process of its own.
	const alone = "BOUVET_TEST_SLOW_END"
	if os.Getenv(alone) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestMuxSlowEnd$")
		cmd.Env, cmd.WaitDelay = append(os.Environ(), alone+"=1"), patience
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v:\n%s", err, out)
		}
		return
	}
	synctest.Test(t, func(t *testing.T) {
		host, guest := net.Pipe()
		l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadSlice('\n')
			_, _ = io.WriteString(c, "OK 1\n")
			_, _ = c.Write(make([]byte, 100<<10))
			_ = c.Close()
		}()
		c, err := m.Dial(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // of the bubble's clock
		if got, err := io.ReadAll(c); len(got) != 100<<10 || err != nil {
			t.Errorf("got %d bytes, %v", len(got), err)
		}
		_ = c.Close()
		_ = m.Close()
		_ = l.Close()
	})
}

func TestMuxEnds(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(m *vsock.Mux, guest *net.UnixConn, l *vsock.MuxListener)
	}{
		{"Close", func(m *vsock.Mux, _ *net.UnixConn, _ *vsock.MuxListener) { _ = m.Close() }},
		{"the guest closes its listener", func(_ *vsock.Mux, _ *net.UnixConn, l *vsock.MuxListener) { _ = l.Close() }},
		{"the guest dies", func(_ *vsock.Mux, guest *net.UnixConn, _ *vsock.MuxListener) { _ = guest.Close() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			host, guest := pipe(t)
			l := vsock.NewMuxListener(guest)
			serve(t, l, func(c net.Conn, port uint32) {
				if port == 1 {
					echo(c, port)
				}
				_, _ = io.ReadFull(c, make([]byte, 1)) // and read no more
				_, _ = c.Read(nil)
				select {
				case <-t.Context().Done():
				case <-time.After(patience):
				}
			})
			m := vsock.NewMux(host)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			reader, err := m.Dial(ctx, 1)
			if err != nil {
				t.Fatal(err)
			}
			writer, err := m.Dial(ctx, 2)
			if err != nil {
				t.Fatal(err)
			}
			read := result(func() error { _, err := reader.Read(make([]byte, 1)); return err })
			write := result(func() error {
				for {
					if _, err := writer.Write(make([]byte, 1<<20)); err != nil {
						return err
					}
				}
			})
			tc.end(m, guest, l)
			if err := soon(t, "Read", read); !isClosedError(err) {
				t.Errorf("Read: got %v", err)
			}
			if err := soon(t, "Write", write); !isClosedError(err) {
				t.Errorf("Write: got %v", err)
			}
			soon(t, "Done", m.Done())
			if _, err := m.Dial(ctx, 1); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Dial: got %v, want %v", err, net.ErrClosed)
			}
			for range 2 {
				if err := m.Close(); err != nil {
					t.Errorf("Close: got %v", err)
				}
			}
			if _, err := reader.Read(make([]byte, 1)); !isClosedError(err) {
				t.Errorf("Read: got %v", err)
			}
		})
	}
}

// Before there is a session, Dial waits for it, for its context and for Close.
func TestMuxNoGuest(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	host, _ := pipe(t)
	m := vsock.NewMux(host)
	ctx, cancel := context.WithCancel(t.Context())
	dialled := result(func() error { _, err := m.Dial(ctx, 1); return err })
	other := result(func() error { _, err := m.Dial(t.Context(), 1); return err })
	cancel()
	if err := soon(t, "Dial", dialled); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	_ = m.Close()
	if err := soon(t, "Dial", other); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// A port that nobody serves: the agent closes the stream.
func TestMuxNotReady(t *testing.T) { // L2
	host, guest := pipe(t)
	l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
	t.Cleanup(func() { _, _ = m.Close(), l.Close() })
	go func() {
		if c, err := l.Accept(); err == nil {
			_ = c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := m.Dial(ctx, 7); !errors.Is(err, vsock.ErrNotReady) || errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, vsock.ErrNotReady)
	}
}

// T24: what another session left, its hello and start among it, begins none.
func TestMuxGarbageFirst(t *testing.T) {
	for name, garbage := range map[string]string{
		"text":               "boot: hello\nBOUVET-MUX 1 start 0123456789abcdef0123456789abcdef\nno newline",
		"a megabyte":         string(make([]byte, 1<<20)),
		"another's hello":    "\nBOUVET-MUX 1 hello 0123456789abcdef0123456789abcdef\n",
		"half a hello":       "\nBOUVET-MUX 1 hel",
		"an unknown version": "\nBOUVET-MUX 2 hello 0123456789abcdef0123456789abcdef\n",
	} {
		for _, side := range []string{"host", "guest"} {
			t.Run(name+" from the "+side, func(t *testing.T) {
				testutil.Ledger(t, testutil.Scope{})
				host, guest := pipe(t)
				from := map[string]*net.UnixConn{"host": host, "guest": guest}[side]
				written := make(chan struct{})
				go func() {
					defer close(written)
					_, _ = io.WriteString(from, garbage)
				}()
				to := map[string]*net.UnixConn{"host": guest, "guest": host}[side]
				if len(garbage) > 64<<10 {
					_, _ = io.CopyN(io.Discard, to, int64(len(garbage)-1024))
				}
				soon(t, "garbage", written)
				serve(t, vsock.NewMuxListener(guest), echo)
				m := vsock.NewMux(host)
				roundtrip(t, dial(t, m), "hello")
				_ = m.Close()
			})
		}
	}
}

// restart replaces the host of a channel that was cut at some byte of a frame.
func restart(t *testing.T, first, second vsock.Channel, l *vsock.MuxListener, cut []byte, mid io.Writer) {
	t.Helper()
	serve(t, l, echo)
	m := vsock.NewMux(first)
	roundtrip(t, dial(t, m), "first")
	_ = m.Close()
	if _, err := mid.Write(cut); err != nil {
		t.Fatal(err)
	}
	m = vsock.NewMux(second)
	roundtrip(t, dial(t, m), "second")
	_ = m.Close()
}

// A host that died inside a frame: the next one resynchronises, wherever it was
// cut.
func TestMuxRestart(t *testing.T) {
	header := []byte{0, 0, 0, 1, 0, 0, 0, 9, 0, 1, 0, 0} // data for a new stream, 64 KiB
	cuts := map[string][]byte{
		"between frames":   nil,
		"inside data":      append(header, make([]byte, 100)...),
		"before last byte": append(header, make([]byte, 64<<10-1)...),
		"inside a start":   []byte("\nBOUVET-MUX 1 start 0123"),
	}
	for n := 1; n <= len(header); n++ {
		cuts["after header byte "+string(rune('a'+n-1))] = header[:n]
	}
	for name, cut := range cuts {
		t.Run(name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			host, guest := pipe(t)
			restart(t, dup(t, host), dup(t, host), vsock.NewMuxListener(guest), cut, host)
			_ = host.Close()
		})
	}
}

// The same over a terminal, which is a device and no socket, as a virtio-serial
// port is.
func TestMuxRestartOnDevice(t *testing.T) {
	master, slave, err := pty.Open()
	if err != nil {
		t.Skipf("no pseudo-terminal (%v): `mount -t devpts devpts /dev/pts`", err)
	}
	t.Cleanup(func() { _, _ = master.Close(), slave.Close() })
	for _, f := range []*os.File{master, slave} {
		if _, err := term.MakeRaw(int(f.Fd())); err != nil { // Fd makes the file blocking
			t.Fatal(err)
		}
	}
	reopen := func(f *os.File) *os.File {
		fd, err := dupNonblocking(f)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	cut := append([]byte{0, 0, 0, 1, 0, 0, 0, 9, 0, 0, 128, 0}, make([]byte, 1000)...)
	restart(t, reopen(master), reopen(master), vsock.NewMuxListener(reopen(slave)), cut, master)
}

// A restart while the first session's streams live: they end.
func TestMuxRestartEndsStreams(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	host, guest := pipe(t)
	l := vsock.NewMuxListener(guest)
	ended := make(chan error, 1)
	serve(t, l, func(c net.Conn, port uint32) {
		if port == 2 {
			echo(c, port)
			return
		}
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	first := vsock.NewMux(dup(t, host))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := first.Dial(ctx, 1); err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	second := vsock.NewMux(host)
	c, err := second.Dial(ctx, 2)
	if err != nil {
		t.Fatal(err)
	}
	_ = soon(t, "the end of the first session's stream", ended)
	roundtrip(t, c, "second")
	_ = second.Close()
}

func TestMuxListenerEnds(t *testing.T) {
	t.Run("the host goes away", func(t *testing.T) {
		testutil.Ledger(t, testutil.Scope{})
		host, guest := pipe(t)
		l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
		accepted := result(func() error { _, err := l.Accept(); return err })
		_ = m.Close()
		if err := soon(t, "Accept", accepted); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want EOF", err)
		}
		_ = l.Close()
	})
	t.Run("Close before a session", func(t *testing.T) {
		testutil.Ledger(t, testutil.Scope{})
		_, guest := pipe(t)
		l := vsock.NewMuxListener(guest)
		accepted := result(func() error { _, err := l.Accept(); return err })
		_ = soon(t, "Close", result(l.Close))
		if err := soon(t, "Accept", accepted); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want %v", err, net.ErrClosed)
		}
	})
	t.Run("Close during a session", func(t *testing.T) {
		testutil.Ledger(t, testutil.Scope{})
		host, guest := pipe(t)
		l := vsock.NewMuxListener(guest)
		serve(t, l, echo)
		m := vsock.NewMux(host)
		c := dial(t, m)
		roundtrip(t, c, "a")
		for range 2 {
			_ = soon(t, "Close", result(l.Close))
		}
		if _, err := c.Read(make([]byte, 1)); !isClosedError(err) {
			t.Errorf("the host reads: %v", err)
		}
		soon(t, "Done", m.Done())
	})
	t.Run("Close while streams wait to be accepted", func(t *testing.T) {
		testutil.Ledger(t, testutil.Scope{})
		host, guest := pipe(t)
		l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
		ctx, cancel := context.WithCancel(t.Context())
		dialled := result(func() error { _, err := m.Dial(ctx, 1); return err })
		first, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = first.Close()
		_ = soon(t, "Close", result(l.Close))
		_ = soon(t, "Dial", dialled)
		cancel()
		_ = m.Close()
	})
	t.Run("Addr", func(t *testing.T) {
		_, guest := pipe(t)
		l := vsock.NewMuxListener(guest)
		if got := l.Addr().Network(); got != "mux" {
			t.Errorf("got %q", got)
		}
		_ = l.Close()
	})
}
