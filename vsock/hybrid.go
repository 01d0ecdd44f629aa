package vsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// ErrNotReady means that the other side closed the stream before it
// acknowledged the port: nothing listens there yet. It is worth a retry
// (checklist L2).
var ErrNotReady = errors.New("guest is not listening on this port yet")

// A HandshakeError is any answer to CONNECT other than an acknowledgement.
type HandshakeError struct {
	// Response is what came instead of OK, at most wire.MaxHandshakeLine bytes.
	Response string
}

// Error implements error with the text of seed 000 (checklist A6). A response that
// is not one line of plain ASCII is quoted: it is a peer's (threat T23).
func (e *HandshakeError) Error() string {
	line := strings.TrimRight(e.Response, "\r\n")
	if quoted := strconv.QuoteToASCII(line); quoted[1:len(quoted)-1] != line {
		return "handshake failed: " + quoted
	}
	return "handshake failed: " + line
}

// Hybrid dials ports of a guest through a hybrid vsock unix socket.
type Hybrid struct {
	// Path is the unix socket, for example "<chroot>/<id>/v.sock".
	Path string
}

// maxSockaddr is the longest path that fits a unix socket address.
const maxSockaddr = 107

// Dial connects to port. ctx bounds the connection and the handshake alone. Its
// errors carry the texts of seed 000 and wrap their cause.
func (h Hybrid) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	path := h.Path
	if len(path) > maxSockaddr {
		// The address is too short for the path, not the kernel: a descriptor of
		// the directory names it in a few bytes.
		dir, err := os.Open(filepath.Dir(path))
		if err != nil {
			return nil, fmt.Errorf("socket connect failed: %w", err)
		}
		defer func() { _ = dir.Close() }()
		path = fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path))
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			op.Addr = &net.UnixAddr{Net: "unix", Name: h.Path}
		}
		return nil, fmt.Errorf("socket connect failed: %w", err)
	}
	if err := Handshake(ctx, conn, port); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// Handshake asks for port on a fresh stream and waits for the acknowledgement.
// It reads not one byte more (checklist A8), and leaves the stream without a
// deadline. When it fails the stream is of no further use, and is the caller's to
// close.
func Handshake(ctx context.Context, conn net.Conn, port uint32) error {
	stop := bindDeadline(ctx, conn)
	err := handshake(conn, port)
	// A context that ended has left its deadline on conn, whatever came of it.
	if cause := stop(); cause != nil {
		return fmt.Errorf("handshake failed: %w", cause)
	}
	return err
}

func handshake(conn net.Conn, port uint32) error {
	if _, err := io.WriteString(conn, wire.ConnectLine(port)); err != nil {
		return fmt.Errorf("handshake write failed: %w", err)
	}
	line := make([]byte, 0, wire.MaxHandshakeLine)
	for len(line) < cap(line) {
		// One byte at a time: what follows the newline belongs to the protocol.
		n, err := conn.Read(line[len(line) : len(line)+1])
		line = line[:len(line)+n]
		if n > 0 && line[len(line)-1] == '\n' {
			break
		}
		switch {
		case err == nil:
		case len(line) == 0 && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)):
			return fmt.Errorf("handshake failed: %w", ErrNotReady)
		case errors.Is(err, io.EOF):
			return &HandshakeError{Response: string(line)}
		default:
			return fmt.Errorf("handshake read failed: %w", err)
		}
	}
	if _, ok := wire.ParseOK(line); !ok || line[len(line)-1] != '\n' {
		return &HandshakeError{Response: string(line)}
	}
	return nil
}

// bindDeadline makes ctx bound the I/O on conn until the returned function is
// called, which says why ctx ended, if it did, and lifts the bound otherwise.
func bindDeadline(ctx context.Context, conn net.Conn) (stop func() error) {
	expired := make(chan struct{})
	release := context.AfterFunc(ctx, func() {
		_ = conn.SetDeadline(time.Unix(1, 0))
		close(expired)
	})
	return func() error {
		if !release() {
			<-expired
			return context.Cause(ctx)
		}
		_ = conn.SetDeadline(time.Time{})
		return nil
	}
}
