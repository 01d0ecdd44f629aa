package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// forwardDialTime bounds the connection to a port of the guest itself.
const forwardDialTime = 5 * time.Second

func prepareForward(ctx context.Context, _ *Server, params json.RawMessage) (stream, error) {
	var p wire.ForwardParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if p.Port == 0 {
		return nil, missing("port")
	}
	target, err := dialLoopback(ctx, p.Port)
	if err != nil {
		return nil, fmt.Errorf("failed to connect to port %d: %w", p.Port, bare(err))
	}
	return func(_ context.Context, conn net.Conn, r io.Reader) { forward(conn, r, target) }, nil
}

// dialLoopback tries both loopback addresses: a server may listen on one only.
func dialLoopback(ctx context.Context, port uint16) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardDialTime)
	defer cancel()
	var d net.Dialer
	var first error
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			return tcp, nil
		}
		_ = conn.Close()
	}
	return nil, first
}

// forward carries bytes both ways until both directions have ended, or either
// has broken.
func forward(conn net.Conn, r io.Reader, target *net.TCPConn) {
	defer func() { _ = target.Close() }()
	var toHost sync.WaitGroup
	toHost.Go(func() {
		if err := sendStream(conn, target); err != nil {
			// The host does not take it, or the target broke: the other direction
			// has lost its use.
			_ = target.Close()
			_ = conn.Close()
		}
	})
	if _, err := receive(&untilError{w: target}, r, func() {}); err != nil {
		_ = target.Close()
	} else {
		_ = target.CloseWrite()
	}
	toHost.Wait()
}

// untilError drops what its writer does not take: a server may answer, and end,
// before it has read all, and its answer is still to be carried.
type untilError struct {
	w      io.Writer
	failed bool
}

func (u *untilError) Write(b []byte) (int, error) {
	if !u.failed {
		_, err := u.w.Write(b)
		u.failed = err != nil
	}
	return len(b), nil
}

// sendStream sends what r has as data frames and the frame that ends them. It
// returns an error when the stream is broken for good.
func sendStream(conn net.Conn, r io.Reader) error {
	buf := make([]byte, wire.FrameHeaderLen+streamChunk)
	for {
		n, err := r.Read(buf[wire.FrameHeaderLen:])
		if n > 0 {
			wire.PutFrameHeader(buf, wire.FrameData, n)
			if _, err := conn.Write(buf[:wire.FrameHeaderLen+n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return writeEnd(conn, wire.EndFrame{})
		case err != nil:
			return errors.Join(err, writeEnd(conn, wire.EndFrame{Error: bare(err).Error()}))
		}
	}
}
