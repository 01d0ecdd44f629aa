package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kinds of binary frames. A frame is one byte of kind, four bytes of payload
// length (big endian), and the payload.
const (
	FrameStdin   byte = 1 // host to guest, bytes for standard input
	FrameStdout  byte = 2 // guest to host
	FrameStderr  byte = 3 // guest to host
	FrameControl byte = 4 // JSON: an InputFrame, a StreamFrame or a WatchEvent
	FrameData    byte = 5 // bytes of a download, upload or forward
	FrameEnd     byte = 6 // JSON EndFrame: the end of FrameData in this direction
)

// FrameHeaderLen is the length of a binary frame's header in bytes.
const FrameHeaderLen = 5

// EndFrame is the payload of FrameEnd. The protocol says itself where a stream
// ends because not every transport can close one direction (Firecracker's vsock
// turns a half-close into a full one).
type EndFrame struct {
	// Error says why the stream is incomplete; empty means that it is whole.
	Error string `json:"error"`
	// Size is the number of bytes received, in the agent's answer to an upload.
	Size uint64 `json:"size,omitempty"`
}

// ErrBadFrame means that a peer's bytes are not a binary frame; the stream
// cannot be resynchronised.
var ErrBadFrame = errors.New("malformed frame")

// FrameReader reads binary frames from a peer. It is not safe for concurrent use.
type FrameReader struct {
	r   io.Reader
	buf []byte
	hdr [FrameHeaderLen]byte
	err error
}

// NewFrameReader returns a reader of frames; r should be buffered or a stream.
func NewFrameReader(r io.Reader) *FrameReader { return &FrameReader{r: r} }

// ReadFrame returns the next frame's kind and payload, valid until the next
// call. The length is checked before anything is allocated. A stream that ends
// between frames is io.EOF, one that ends within is io.ErrUnexpectedEOF. Every
// error is for good.
func (f *FrameReader) ReadFrame() (kind byte, payload []byte, err error) {
	if f.err != nil {
		return 0, nil, f.err
	}
	kind, payload, f.err = f.next()
	return kind, payload, f.err
}

func (f *FrameReader) next() (kind byte, payload []byte, err error) {
	if _, err := io.ReadFull(f.r, f.hdr[:]); err != nil {
		return 0, nil, err
	}
	kind = f.hdr[0]
	n := binary.BigEndian.Uint32(f.hdr[1:])
	if kind < FrameStdin || kind > FrameEnd {
		return 0, nil, fmt.Errorf("%w: unknown kind %d", ErrBadFrame, kind)
	}
	if n > MaxPayload {
		return 0, nil, fmt.Errorf("%w: payload of %d bytes, at most %d are allowed", ErrBadFrame, n, MaxPayload)
	}
	if int(n) > cap(f.buf) {
		f.buf = make([]byte, max(int(n), 4<<10))
	}
	f.buf = f.buf[:n]
	if _, err := io.ReadFull(f.r, f.buf); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	return kind, f.buf, nil
}

// PutFrameHeader fills the first FrameHeaderLen bytes of b. A caller that leaves
// room for them before its data sends header and payload with one write.
func PutFrameHeader(b []byte, kind byte, n int) {
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:FrameHeaderLen], uint32(n)) //nolint:gosec // n is at most MaxPayload, which callers keep.
}

// AppendFrame appends a frame to dst. The payload must not exceed MaxPayload.
func AppendFrame(dst []byte, kind byte, payload []byte) []byte {
	var h [FrameHeaderLen]byte
	PutFrameHeader(h[:], kind, len(payload))
	return append(append(dst, h[:]...), payload...)
}
