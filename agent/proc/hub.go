package proc

import (
	"io"
	"sync"
)

// A Stream is one of the two outputs of a process.
type Stream uint8

// The streams.
const (
	Stdout Stream = 1
	Stderr Stream = 2
)

const (
	// HubSize is how much of a detached process's output is kept, in bytes.
	HubSize = 1 << 20
	// maxSegments bounds the changes from one stream to the other in what is kept.
	maxSegments = 8 << 10
)

// A Hub keeps the tail of a detached process's output, stdout and stderr in the
// order in which they came, and hands it to any number of subscribers. Offsets
// count the bytes of both since the start. While there are subscribers, the
// slowest one holds the process back; while there is none the oldest output
// gives way to the newest.
type Hub struct {
	mu         sync.Mutex
	changed    *sync.Cond // a write, a read, an end; of mu
	ring       []byte
	start, end uint64    // the kept part, in offsets
	segments   []segment // of the kept part, oldest first
	subs       map[*Subscriber]struct{}
	ended      bool // no more is written
	first      *Subscriber
}

// A segment is a run of bytes of one stream that ends at an offset.
type segment struct {
	end    uint64
	stream Stream
}

// newHub returns a hub whose first subscriber, who misses nothing, is there from
// the beginning.
func newHub() *Hub {
	h := &Hub{ring: make([]byte, HubSize), subs: map[*Subscriber]struct{}{}}
	h.changed = sync.NewCond(&h.mu)
	h.first = &Subscriber{h: h}
	h.subs[h.first] = struct{}{}
	return h
}

// First returns the subscriber who sees the output from its first byte. It is made
// together with the process and holds that back until it reads or is closed, so
// whoever starts a detached process must do one of these.
func (h *Hub) First() *Subscriber { return h.first }

// Subscribe adds a subscriber. It gets what is kept from offset *from on, or only
// what is written from now on if from is nil.
func (h *Hub) Subscribe(from *uint64) *Subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Subscriber{h: h, pos: h.end}
	if from != nil {
		s.pos = min(max(*from, h.start), h.end)
	}
	h.subs[s] = struct{}{}
	return s
}

// write adds data, waiting for subscribers that are behind. It reports false when
// the hub has been ended meanwhile.
func (h *Hub) write(stream Stream, data []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(data) > 0 {
		if h.ended {
			return false
		}
		n := min(h.room(stream), len(data))
		if n == 0 {
			h.changed.Wait()
			continue
		}
		h.put(stream, data[:n])
		data = data[n:]
		h.changed.Broadcast()
	}
	return true
}

// room returns how many bytes of stream may be written without harm to a subscriber.
func (h *Hub) room(stream Stream) int {
	slowest := h.end
	for s := range h.subs {
		slowest = min(slowest, s.pos)
	}
	if n := len(h.segments); n >= maxSegments && h.segments[n-1].stream != stream && h.segments[0].end > slowest {
		return 0
	}
	return HubSize - int(h.end-slowest) //nolint:gosec // at most HubSize.
}

// put writes at most HubSize bytes.
func (h *Hub) put(stream Stream, data []byte) {
	at := int(h.end % HubSize)
	n := copy(h.ring[at:], data)
	copy(h.ring, data[n:])
	h.end += uint64(len(data))
	if n := len(h.segments); n > 0 && h.segments[n-1].stream == stream {
		h.segments[n-1].end = h.end
	} else {
		if n >= maxSegments {
			h.start = h.segments[0].end
		}
		h.segments = append(h.segments, segment{h.end, stream})
	}
	if h.end > HubSize {
		h.start = max(h.start, h.end-HubSize)
	}
	gone := 0
	for gone < len(h.segments) && h.segments[gone].end <= h.start {
		gone++
	}
	h.segments = h.segments[gone:]
}

// finish says that no more is written.
func (h *Hub) finish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	h.changed.Broadcast()
}

// A Subscriber reads a Hub. Close may be called at any time; the rest is for one
// goroutine.
type Subscriber struct {
	h      *Hub
	pos    uint64 // guarded by h.mu
	closed bool   // guarded by h.mu
}

// Offset returns where the next byte read stands in the output.
func (s *Subscriber) Offset() uint64 {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.pos
}

// Read waits for output and copies some of one stream into b, which must have
// room. It returns io.EOF at the end of the output and io.ErrClosedPipe after
// Close.
func (s *Subscriber) Read(b []byte) (Stream, int, error) {
	h := s.h
	h.mu.Lock()
	defer h.mu.Unlock()
	for s.pos == h.end && !h.ended && !s.closed {
		h.changed.Wait()
	}
	switch {
	case s.closed:
		return 0, 0, io.ErrClosedPipe
	case s.pos == h.end:
		return 0, 0, io.EOF
	}
	seg := h.segmentAt(s.pos)
	n := min(len(b), int(seg.end-s.pos), HubSize) //nolint:gosec // at most HubSize.
	at := int(s.pos % HubSize)
	c := copy(b[:n], h.ring[at:])
	copy(b[c:n], h.ring)
	s.pos += uint64(n) //nolint:gosec // not negative.
	h.changed.Broadcast()
	return seg.stream, n, nil
}

// segmentAt returns the segment that holds the byte at pos.
func (h *Hub) segmentAt(pos uint64) segment {
	lo, hi := 0, len(h.segments)-1
	for lo < hi {
		if mid := (lo + hi) / 2; h.segments[mid].end > pos {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return h.segments[lo]
}

// Close ends the subscription and wakes its Read. It is idempotent.
func (s *Subscriber) Close() {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.closed = true
	delete(s.h.subs, s)
	s.h.changed.Broadcast()
}

// startPumps moves the output of a detached process into its hub. The caller
// holds m.mu.
func (p *Process) startPumps() {
	p.m.hubs[p.hub] = struct{}{}
	p.m.wg.Go(func() {
		var pumps sync.WaitGroup
		pumps.Go(func() { p.hub.pump(Stdout, p.stdout) })
		if p.stderr != nil {
			pumps.Go(func() { p.hub.pump(Stderr, p.stderr) })
		}
		pumps.Wait()
		p.hub.finish()
		p.m.mu.Lock()
		defer p.m.mu.Unlock()
		delete(p.m.hubs, p.hub)
	})
}

func (h *Hub) pump(stream Stream, o *output) {
	defer func() { _ = o.Close() }()
	buf := make([]byte, 32<<10)
	for {
		n, err := o.Read(buf)
		if n > 0 && !h.write(stream, buf[:n]) {
			return
		}
		if err != nil {
			return
		}
	}
}
