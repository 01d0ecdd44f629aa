package bouvet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// Forward connects to a TCP port on the guest's loopback. The connection's
// deadlines work: what a Write had begun to send when its deadline struck counts as
// written, and goes out before the next. It has a CloseWrite for a half-close. ctx bounds the call alone.
func (c *AgentClient) Forward(ctx context.Context, port uint16) (net.Conn, error) {
	if port == 0 {
		return nil, errors.New("cannot forward to port 0")
	}
	s, err := c.openStream(ctx, call{method: wire.MethodForward, params: wire.ForwardParams{Port: port}}, &wire.Empty{})
	if err != nil {
		return nil, err
	}
	f := &forwardConn{conn: s.conn, port: port}
	f.unbind = context.AfterFunc(c.life, s.conn.close) //nolint:contextcheck // ctx bounds the call, not the connection.
	return f, nil
}

// forwardConn carries the bytes of a TCP connection in data frames. It reads
// frames itself, and not with a wire.FrameReader, because a Read that ends at its
// deadline must not lose what it has read of a frame.
type forwardConn struct {
	conn   *rpcConn
	port   uint16
	unbind func() bool

	readMu sync.Mutex
	header [wire.FrameHeaderLen]byte // guarded by readMu
	have   int                       // bytes of header; guarded by readMu
	left   int                       // bytes of the payload not yet read; guarded by readMu
	end    []byte                    // payload of the end frame so far; guarded by readMu
	eof    error                     // what Read returns from now on; guarded by readMu

	writeMu  sync.Mutex
	writeErr error // what Write returns from now on; guarded by writeMu
	buf      []byte
	rest     []byte // of a frame that was begun; guarded by writeMu
}

// Read implements net.Conn.
func (f *forwardConn) Read(p []byte) (int, error) {
	f.readMu.Lock()
	defer f.readMu.Unlock()
	for {
		switch {
		case f.eof != nil:
			return 0, f.eof
		case len(p) == 0:
			return 0, nil
		case f.have < wire.FrameHeaderLen:
			n, err := f.conn.lines.Read(f.header[f.have:])
			f.have += n
			if err != nil && n == 0 {
				return 0, f.readError(err)
			}
			if f.have == wire.FrameHeaderLen {
				f.eof = f.begin()
			}
		case f.header[0] == wire.FrameEnd:
			if f.left == 0 {
				f.eof = f.finish()
				continue
			}
			var chunk [512]byte
			n, err := f.conn.lines.Read(chunk[:min(f.left, len(chunk))])
			f.end, f.left = append(f.end, chunk[:n]...), f.left-n
			if err != nil && n == 0 {
				return 0, f.readError(err)
			}
		case f.left == 0:
			f.have = 0
		default:
			n, err := f.conn.lines.Read(p[:min(len(p), f.left)])
			f.left -= n
			if err != nil && n == 0 {
				return 0, f.readError(err)
			}
			return n, nil
		}
	}
}

// begin checks a frame's header.
func (f *forwardConn) begin() error {
	n := binary.BigEndian.Uint32(f.header[1:])
	kind := f.header[0]
	if kind != wire.FrameData && kind != wire.FrameEnd || n > wire.MaxPayload || kind == wire.FrameEnd && n > maxSmallReply {
		return &JSONError{fmt.Errorf("forward: %w: kind %d of %d bytes", wire.ErrBadFrame, kind, n)}
	}
	f.left = int(n)
	return nil
}

// finish reads the end frame.
func (f *forwardConn) finish() error {
	var end wire.EndFrame
	if err := wire.Decode(f.end, &end); err != nil {
		return &JSONError{fmt.Errorf("end of forward: %w", err)}
	}
	if end.Error != "" {
		return remoteError(end.Error)
	}
	return io.EOF
}

func (f *forwardConn) readError(err error) error {
	if isTimeout(err) {
		return err // and the next Read goes on where this one stopped
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // without an end frame
	}
	f.eof = &net.OpError{Op: "read", Net: "forward", Err: err}
	return f.eof
}

// Write implements net.Conn.
func (f *forwardConn) Write(p []byte) (int, error) {
	f.writeMu.Lock()
	defer f.writeMu.Unlock()
	written := 0
	for len(p) > 0 {
		if f.writeErr != nil {
			return written, f.writeErr
		}
		chunk := p[:min(len(p), wire.ChunkSize)]
		begun, err := f.writeFrame(wire.FrameData, chunk)
		if begun {
			written += len(chunk)
			p = p[len(chunk):]
		}
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// writeFrame is called with writeMu held. It reports whether any of the frame was
// sent: then the rest of it goes out before anything else, or the stream would be
// out of step.
func (f *forwardConn) writeFrame(kind byte, payload []byte) (begun bool, err error) {
	if err := f.writeRest(); err != nil {
		return false, err
	}
	f.buf = wire.AppendFrame(f.buf[:0], kind, payload)
	f.rest = f.buf
	err = f.writeRest()
	if begun = len(f.rest) < len(f.buf); !begun {
		f.rest = nil
	}
	return begun, err
}

func (f *forwardConn) writeRest() error {
	if len(f.rest) == 0 {
		return nil
	}
	n, err := f.conn.Write(f.rest)
	f.rest = f.rest[n:]
	if err != nil && !isTimeout(err) {
		f.writeErr = &net.OpError{Op: "write", Net: "forward", Err: err}
		return f.writeErr
	}
	return err
}

// CloseWrite tells the guest's program that no more will come.
func (f *forwardConn) CloseWrite() error {
	f.writeMu.Lock()
	defer f.writeMu.Unlock()
	if f.writeErr != nil {
		return f.writeErr
	}
	_, err := f.writeFrame(wire.FrameEnd, []byte(`{"error":""}`))
	if err == nil {
		f.writeErr = &net.OpError{Op: "write", Net: "forward", Err: os.ErrClosed}
	}
	return err
}

// Close implements net.Conn.
func (f *forwardConn) Close() error {
	f.unbind()
	f.conn.close()
	return nil
}

func (f *forwardConn) SetDeadline(t time.Time) error      { return f.conn.SetDeadline(t) }
func (f *forwardConn) SetReadDeadline(t time.Time) error  { return f.conn.SetReadDeadline(t) }
func (f *forwardConn) SetWriteDeadline(t time.Time) error { return f.conn.SetWriteDeadline(t) }

// LocalAddr implements net.Conn.
func (f *forwardConn) LocalAddr() net.Addr { return forwardAddr(0) }

// RemoteAddr implements net.Conn.
func (f *forwardConn) RemoteAddr() net.Addr { return forwardAddr(f.port) }

type forwardAddr uint16

func (forwardAddr) Network() string  { return "forward" }
func (a forwardAddr) String() string { return fmt.Sprintf("guest:%d", uint16(a)) }
