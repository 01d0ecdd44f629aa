package agent

import (
	"io"
	"net"
	"sync"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// Sizes of the chunks of output, in bytes: what is read of a process at most at
// once and so goes into one frame. A buffer begins small, for there may be many
// commands in a small guest, and grows when a read fills it.
const (
	firstChunk     = 4 << 10
	maxChunk       = wire.ChunkSize
	maxBinaryChunk = 256 << 10
)

// An execWriter writes frames to a host, each with one write.
type execWriter struct {
	conn   net.Conn
	binary bool
	mu     sync.Mutex // orders writes
}

func (w *execWriter) write(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.conn.Write(b)
	return err
}

// frame writes a frame that carries no output.
func (w *execWriter) frame(f wire.StreamFrame) error {
	line, err := wire.AppendLine(nil, f)
	if err != nil {
		return err
	}
	if w.binary {
		line = wire.AppendFrame(nil, wire.FrameControl, line[:len(line)-1])
	}
	return w.write(line)
}

// refuse answers a request that was not carried out, in a way that hosts of all
// versions understand (protocol checklist 2.9, rule 3).
func (w *execWriter) refuse(cause error) {
	text := cause.Error()
	c := newChunk(w)
	if c.send(wire.FrameStderr, copy(c.room(len(text)+1), text+"\n")) == nil {
		_ = w.frame(wire.StreamFrame{Type: wire.FrameTypeExit, ExitCode: 1, Error: text})
	}
}

// A chunk is the buffer of one stream of output.
type chunk struct {
	w    *execWriter
	max  int
	buf  []byte // room for a header and then data
	line []byte // the frame, unless binary
}

func newChunk(w *execWriter) *chunk {
	c := &chunk{w: w, max: maxChunk}
	if w.binary {
		c.max = maxBinaryChunk
	}
	return c
}

// room returns where n bytes of data go.
func (c *chunk) room(n int) []byte {
	if len(c.buf) < wire.FrameHeaderLen+n {
		c.buf = make([]byte, wire.FrameHeaderLen+n)
	}
	return c.buf[wire.FrameHeaderLen:]
}

// next returns where the next data go, given how much the last read brought.
func (c *chunk) next(last int) []byte {
	size := max(len(c.buf)-wire.FrameHeaderLen, firstChunk)
	if last >= size {
		size = min(4*size, c.max)
	}
	return c.room(size)
}

// send writes a frame with the first n bytes of the room.
func (c *chunk) send(kind byte, n int) error {
	if c.w.binary {
		wire.PutFrameHeader(c.buf, kind, n)
		return c.w.write(c.buf[:wire.FrameHeaderLen+n])
	}
	typ := wire.FrameTypeStdout
	if kind == wire.FrameStderr {
		typ = wire.FrameTypeStderr
	}
	c.line = wire.AppendDataFrame(c.line[:0], typ, c.buf[wire.FrameHeaderLen:wire.FrameHeaderLen+n])
	return c.w.write(c.line)
}

// copyOutput sends one stream of the process until it ends. A host that reads
// slowly holds the process back. After the host has gone the rest is read all the
// same, so that nothing of the process is left.
func (x *execSession) copyOutput(kind byte, r io.Reader) {
	c := newChunk(x.out)
	last := 0
	for {
		n, err := r.Read(c.next(last))
		if n > 0 && c.send(kind, n) != nil {
			x.end(errGone)
			discard(r)
			return
		}
		if err != nil {
			return
		}
		last = n
	}
}

// copyHub sends the output of a detached process from where the subscription
// began, until that or the output ends.
func (x *execSession) copyHub() {
	c := newChunk(x.out)
	last := 0
	for {
		stream, n, err := x.sub.Read(c.next(last))
		if err != nil {
			return
		}
		kind := wire.FrameStdout
		if stream == proc.Stderr {
			kind = wire.FrameStderr
		}
		if c.send(kind, n) != nil {
			// The host has gone, but what it sent before is for the process, which stays:
			// whoever reads the input ends the session when it is through.
			x.sub.Close()
			return
		}
		last = n
	}
}
