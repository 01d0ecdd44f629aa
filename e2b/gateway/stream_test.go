package gateway_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// upgrade asks for another protocol than HTTP, and returns the connection once both
// have agreed to it.
func (h *house) upgrade(id daemon.ID, port int) (net.Conn, *bufio.Reader) {
	h.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(testutil.Patience(20 * time.Second))); err != nil {
		h.t.Fatal(err)
	}
	_, err = fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %d-%s.sbx.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", port, id)
	if err != nil {
		h.t.Fatal(err)
	}
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Upgrade") != "websocket" {
		h.t.Fatalf("got %v, %v", res, err)
	}
	return c, br
}

// echoUpgraded speaks another protocol, which says everything again.
func echoUpgraded(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = c.Close() }()
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(c, rw)
	}
}

func TestUpgrade(t *testing.T) {
	h := newHouse(t, false)
	port := h.guest(echoUpgraded(t))
	sb := h.create(daemon.CreateOptions{})
	c, br := h.upgrade(sb.ID, port)
	for _, want := range []string{"hello\n", strings.Repeat("x", 100_000) + "\n"} {
		if _, err := io.WriteString(c, want); err != nil {
			t.Fatal(err)
		}
		if got, err := br.ReadString('\n'); err != nil || got != want {
			t.Fatalf("got %d bytes, %v", len(got), err)
		}
	}
}

// bothVersions runs a test over HTTP/1.1 and over HTTP/2.
func bothVersions(t *testing.T, f func(t *testing.T, http2 bool)) {
	t.Helper()
	t.Run("1.1", func(t *testing.T) { f(t, false) })
	t.Run("2", func(t *testing.T) { f(t, true) })
}

// Each event goes out when it comes.
func TestEvents(t *testing.T) {
	bothVersions(t, func(t *testing.T, http2 bool) {
		h := newHouse(t, http2)
		next := make(chan struct{})
		port := h.guest(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for i := range 3 {
				_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
				_ = http.NewResponseController(w).Flush()
				<-next
			}
		})
		sb := h.create(daemon.CreateOptions{})
		br := bufio.NewReader(h.do(h.request(http.MethodGet, sb.ID, port, "/", nil)).Body)
		for i := range 3 {
			if line, err := br.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
				t.Fatalf("got %q, %v", line, err)
			}
			_, _ = br.ReadString('\n')
			next <- struct{}{}
		}
	})
}

// A body may be answered while it is still being sent.
func TestBothWaysAtOnce(t *testing.T) {
	bothVersions(t, func(t *testing.T, http2 bool) {
		h := newHouse(t, http2)
		port := h.guest(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex()
			br := bufio.NewReader(r.Body)
			for {
				line, err := br.ReadString('\n')
				if err != nil {
					return
				}
				_, _ = io.WriteString(w, line)
				_ = http.NewResponseController(w).Flush()
			}
		})
		sb := h.create(daemon.CreateOptions{})
		pr, pw := io.Pipe()
		r := h.request(http.MethodPost, sb.ID, port, "/", pr)
		wrote := make(chan error, 1)
		go func() { _, err := io.WriteString(pw, "one\n"); wrote <- err }()
		br := bufio.NewReader(h.do(r).Body)
		for _, want := range []string{"one\n", "two\n"} {
			if err := <-wrote; err != nil {
				t.Fatal(err)
			}
			if got, err := br.ReadString('\n'); err != nil || got != want {
				t.Fatalf("got %q, %v", got, err)
			}
			go func() { _, err := io.WriteString(pw, "two\n"); wrote <- err }()
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		_ = pw.Close()
		if rest, err := io.ReadAll(br); err != nil || string(rest) != "two\n" {
			t.Errorf("got %q, %v", rest, err)
		}
	})
}

const (
	bulk = 64 << 20
	// between is more than all buffers between a client and a server hold together, of
	// which those that the kernel has for two TCP connections are the most (19 MiB seen);
	// held is more than those in this process.
	between = 32 << 20
	held    = 16 << 20
)

// A counted reader gives size bytes, and counts those that were taken.
type counted struct {
	size, taken atomic.Int64
}

func (c *counted) Read(p []byte) (int, error) {
	left := c.size.Load() - c.taken.Load()
	if left == 0 {
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), left))
	at := c.taken.Load()
	for i := range p[:n] {
		p[i] = byte((at + int64(i)) * 2654435761 >> 13)
	}
	c.taken.Add(int64(n))
	return n, nil
}

// settled waits until no more is taken, and returns how much that was.
func (c *counted) settled(t testing.TB) int64 {
	t.Helper()
	last := int64(-1)
	quiet := time.Now()
	until(t, "the sender is held up", func() bool {
		if now := c.taken.Load(); now != last {
			last, quiet = now, time.Now()
		}
		return last > 0 && time.Since(quiet) > 300*time.Millisecond
	})
	return last
}

func sumOf(t testing.TB, r io.Reader) string {
	t.Helper()
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}

func newCounted() *counted {
	c := &counted{}
	c.size.Store(bulk)
	return c
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client that does not read holds up the server, and nothing heaps up between them.
func TestSlowClient(t *testing.T) {
	want := sumOf(t, newCounted())
	bothVersions(t, func(t *testing.T, http2 bool) {
		h := newHouse(t, http2)
		body := newCounted()
		port := h.guest(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, body) })
		sb := h.create(daemon.CreateOptions{})
		before := heap()
		res := h.do(h.request(http.MethodGet, sb.ID, port, "/", nil))
		if got := body.settled(t); got > between {
			t.Errorf("%d bytes were taken from the server and none by the client", got)
		}
		if got := heap() - before; got > held {
			t.Errorf("%d bytes are held", got)
		}
		if got := sumOf(t, res.Body); got != want {
			t.Error("the client got something else")
		}
	})
}

// A server that does not read holds up the client.
func TestSlowServer(t *testing.T) {
	want := sumOf(t, newCounted())
	bothVersions(t, func(t *testing.T, http2 bool) {
		h := newHouse(t, http2)
		read := make(chan struct{})
		port := h.guest(func(w http.ResponseWriter, r *http.Request) {
			<-read
			_, _ = io.WriteString(w, sumOf(t, r.Body))
		})
		sb := h.create(daemon.CreateOptions{})
		body := newCounted()
		answer := make(chan string, 1)
		r := h.request(http.MethodPost, sb.ID, port, "/", body)
		go func() {
			res, err := h.http.Do(r)
			if err != nil {
				answer <- err.Error()
				return
			}
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			answer <- string(text)
		}()
		if got := body.settled(t); got > between {
			t.Errorf("%d bytes were taken from the client and none by the server", got)
		}
		close(read)
		if got := <-answer; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
