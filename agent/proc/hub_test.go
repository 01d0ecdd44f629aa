package proc

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// collect reads s to its end and returns the streams as text like "o:abc e:d".
func collect(t testing.TB, s *Subscriber, size int) string {
	t.Helper()
	var out strings.Builder
	last := Stream(0)
	buf := make([]byte, size)
	for {
		stream, n, err := s.Read(buf)
		if errors.Is(err, io.EOF) {
			return strings.TrimSpace(out.String())
		}
		if err != nil {
			t.Fatal(err)
		}
		if stream != last {
			out.WriteString(map[Stream]string{Stdout: " o:", Stderr: " e:"}[stream])
			last = stream
		}
		out.Write(buf[:n])
	}
}

func TestHubOrderAndReplay(t *testing.T) {
	h := newHub()
	h.First().Close()
	h.write(Stdout, []byte("one"))
	h.write(Stderr, []byte("two"))
	h.write(Stdout, []byte("th"))
	h.write(Stdout, []byte("ree"))
	at := func(n uint64) *uint64 { return &n }
	for _, c := range []struct {
		from   *uint64
		offset uint64
		want   string
	}{
		{at(0), 0, "o:one e:two o:three"},
		{at(4), 4, "e:wo o:three"},
		{at(6), 6, "o:three"},
		{at(11), 11, ""},
		{at(1 << 60), 11, ""},
		{nil, 11, ""},
	} {
		s := h.Subscribe(c.from)
		if got := s.Offset(); got != c.offset {
			t.Errorf("from %v: got offset %d, want %d", c.from, got, c.offset)
		}
		defer func() {
			if got := collect(t, s, 2); got != c.want {
				t.Errorf("from offset %d: got %q, want %q", c.offset, got, c.want)
			}
		}()
	}
	h.finish()
}

// Nobody listens: the newest output is kept, however it comes.
func TestHubKeepsTheTail(t *testing.T) {
	for _, size := range []int{97, 1000, HubSize - 1, HubSize, 3*HubSize + 5} {
		h := newHub()
		h.First().Close()
		all := bytes.Repeat([]byte("0123456789"), 2*HubSize/10)
		for rest := all; len(rest) > 0; {
			n := min(size, len(rest))
			h.write(Stdout, rest[:n])
			rest = rest[n:]
		}
		h.finish()
		from := uint64(0)
		s := h.Subscribe(&from)
		if got, want := s.Offset(), uint64(len(all)-HubSize); got != want {
			t.Errorf("writes of %d: the kept part begins at %d, want %d", size, got, want)
		}
		if got, want := collect(t, s, 4096), "o:"+string(all[len(all)-HubSize:]); got != want {
			t.Errorf("writes of %d: got %d bytes, not the last %d", size, len(got), len(want))
		}
	}
}

// Streams that take turns at each byte take a bounded amount of memory.
func TestHubManySegments(t *testing.T) {
	h := newHub()
	h.First().Close()
	for range 5 * maxSegments {
		h.write(Stdout, []byte("o"))
		h.write(Stderr, []byte("e"))
	}
	if got := len(h.segments); got > maxSegments {
		t.Errorf("%d segments are kept, want at most %d", got, maxSegments)
	}
	h.finish()
	from := uint64(0)
	got := collect(t, h.Subscribe(&from), 10)
	if got, want := strings.Count(got, "o:o e:e"), maxSegments/2; got != want {
		t.Errorf("got %d pairs, want the last %d", got, want)
	}
}

// The slowest subscriber holds the writer back; when it leaves, the writer goes on.
func TestHubBackPressure(t *testing.T) {
	for _, turns := range []string{"one stream", "taking turns"} {
		t.Run(turns, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHub()
				slow := h.First()
				fast := h.Subscribe(nil)
				var mu sync.Mutex
				written, read := 0, 0
				done := make(chan struct{})
				go func() {
					defer close(done)
					for i := range 4 * HubSize / 64 {
						stream := Stdout
						if turns != "one stream" && i%2 == 1 {
							stream = Stderr
						}
						if !h.write(stream, make([]byte, 64)) {
							return
						}
						mu.Lock()
						written += 64
						mu.Unlock()
					}
					h.finish()
				}()
				go func() {
					buf := make([]byte, 4096)
					for {
						_, n, err := fast.Read(buf)
						if err != nil {
							return
						}
						mu.Lock()
						read += n
						mu.Unlock()
					}
				}()
				synctest.Wait()
				mu.Lock()
				if written > HubSize || read > HubSize || written == 0 {
					t.Errorf("%d bytes were written and %d read past a subscriber that reads nothing", written, read)
				}
				mu.Unlock()
				slow.Close()
				slow.Close()
				<-done
				synctest.Wait()
				if read != 4*HubSize {
					t.Errorf("got %d bytes, want %d", read, 4*HubSize)
				}
				if _, _, err := slow.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
					t.Errorf("read after close: got %v", err)
				}
			})
		})
	}
}

// Close wakes a subscriber that waits.
func TestSubscriberClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub()
		ended := make(chan error)
		go func() {
			_, _, err := h.First().Read(make([]byte, 1))
			ended <- err
		}()
		synctest.Wait()
		h.First().Close()
		if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v, want %v", err, io.ErrClosedPipe)
		}
	})
}
