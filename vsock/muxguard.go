package vsock

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"
)

// The parts of yamux's framing that the guard has to know: a header of twelve
// bytes, version 0, then for data that many bytes.
const (
	muxHeaderLen = 12

	muxTypeData   = 0
	muxTypeWindow = 1
	muxTypePing   = 2
	muxTypeGoAway = 3

	muxFlagSYN = 1
	muxFlagFIN = 4
	muxFlagRST = 8
)

// maxMuxData is the most data that one frame of a mux carries, in bytes. It keeps
// streams fair to each other, and it is how much of a dead session the padding
// before a hello has to fill up.
const maxMuxData = 64 << 10

var (
	errMuxFrame    = errors.New("malformed mux frame")
	errGuestStream = errors.New("the guest opened a stream")
	errGuestPing   = errors.New("the guest sent a mux ping")
)

// A muxGuard is what a yamux session reads from. It hands data on in pieces that
// have arrived whole, because yamux waits for the rest of a frame under the locks
// of its stream, where no deadline and no Close gets through: a peer that stops in
// the middle of a frame would hang whoever reads (threat T20). And it ends a
// session for what yamux would take from any peer, but no peer of ours sends:
// from a guest streams (threat T19) and pings, each of which would be a goroutine.
type muxGuard struct {
	r    *bufio.Reader
	host bool // the peer is a guest

	header []byte // still to be handed on, before chunk
	store  [muxHeaderLen]byte
	chunk  int // bytes in r that may be handed on
	left   int // bytes of the frame that have not arrived
	id     uint32
	flags  uint16 // of the frame, still to be handed on
	skip   bool   // drop the frame's bytes

	mu    sync.Mutex
	muted map[uint32]time.Time // since when; guarded by mu
	// hangups are closed when the peer closes a stream; guarded by mu
	hangups map[uint32]chan struct{}

	sweepAt int // how many muted streams are too many; guarded by mu
}

// muteFor is how long a muted stream is remembered: until yamux has certainly
// forgotten it, too.
const muteFor = 2 * streamCloseTimeout

// mute drops the data of a stream that nobody reads any more, which would
// otherwise be held until the peer closes its end.
func (g *muxGuard) mute(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.muted == nil {
		g.muted = map[uint32]time.Time{}
	}
	if len(g.muted) >= g.sweepAt {
		maps.DeleteFunc(g.muted, func(_ uint32, since time.Time) bool { return now.Sub(since) > muteFor })
		g.sweepAt = 2*len(g.muted) + 64
	}
	g.muted[id] = now
}

func (g *muxGuard) unmute(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.muted, id)
}

func (g *muxGuard) isMuted(id uint32) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, muted := g.muted[id]
	return muted
}

// Read implements io.Reader.
func (g *muxGuard) Read(p []byte) (int, error) {
	for {
		switch {
		case len(g.header) > 0:
			n := copy(p, g.header)
			g.header = g.header[n:]
			return n, nil
		case g.chunk > 0:
			waiting, _ := g.r.Peek(g.chunk) // it has arrived
			n := copyBytes(p, waiting)
			_, err := g.r.Discard(n)
			g.chunk -= n
			return n, err
		}
		if err := g.advance(); err != nil {
			return 0, err
		}
	}
}

// advance waits for more of a frame, or for the next one.
func (g *muxGuard) advance() error {
	switch {
	case g.left > 0:
		if _, err := g.r.Peek(1); err != nil {
			return err
		}
		n := min(g.left, g.r.Buffered())
		g.left -= n
		g.skip = g.skip || g.isMuted(g.id)
		if g.skip {
			_, err := g.r.Discard(n)
			return err
		}
		g.chunk = n
		g.put(muxTypeData, g.flags&^muxFlagFIN, n)
		g.flags &= muxFlagFIN
		return nil
	case g.flags != 0:
		// What ends the stream comes after the last of its bytes.
		g.put(muxTypeData, g.flags, 0)
		g.flags = 0
		return nil
	default:
		return g.next()
	}
}

func (g *muxGuard) put(kind byte, flags uint16, n int) {
	h := g.store[:]
	h[0], h[1] = 0, kind
	binary.BigEndian.PutUint16(h[2:], flags)
	binary.BigEndian.PutUint32(h[4:], g.id)
	binary.BigEndian.PutUint32(h[8:], uint32(n)) //nolint:gosec // n is at most maxMuxData.
	g.header = h
}

// next reads a header. A bad one is left where it is: it may be the beginning of
// the next session.
func (g *muxGuard) next() error {
	h, err := g.r.Peek(muxHeaderLen)
	if err != nil {
		if len(h) > 0 && errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	kind, flags := h[1], binary.BigEndian.Uint16(h[2:])
	id, n := binary.BigEndian.Uint32(h[4:]), binary.BigEndian.Uint32(h[8:])
	switch {
	case h[0] != 0 || kind > muxTypeGoAway:
		return errMuxFrame
	case kind == muxTypeGoAway:
		return io.EOF
	case kind == muxTypeData && n > maxMuxData:
		return fmt.Errorf("%w: %d bytes of data, at most %d are allowed", errMuxFrame, n, maxMuxData)
	case g.host && kind != muxTypePing && flags&muxFlagSYN != 0:
		return errGuestStream
	case g.host && kind == muxTypePing:
		return errGuestPing
	}
	if kind != muxTypeData || n == 0 {
		g.header = append(g.store[:0], h...)
	} else {
		g.id, g.flags, g.left = id, flags, int(n)
		g.skip = g.isMuted(id)
	}
	if kind != muxTypePing && flags&muxFlagSYN != 0 {
		g.expectHangup(id)
	}
	if kind != muxTypePing && flags&(muxFlagFIN|muxFlagRST) != 0 {
		g.unmute(id)
		g.hangUp(id)
	}
	_, err = g.r.Discard(muxHeaderLen)
	return err
}
