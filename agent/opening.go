package agent

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// lineTime bounds how long a line that has begun may take to arrive whole.
const lineTime = 60 * time.Second

// route reads what a connection begins with and hands it to its protocol.
//
// The CONNECT line is Firecracker's to answer; it reaches the agent where no
// Firecracker is between: through a mux, a unix socket or a host's own vsock
// (checklist C5, L2).
func (s *Server) route(ctx context.Context, conn net.Conn, port uint32) {
	in := &opener{conn: conn}
	chosen, ok, err := in.connectLine()
	if err != nil {
		s.log.Debug("connection ended before its first line", slog.Any("error", err))
		return
	}
	switch {
	case ok:
		port = chosen
	case port == 0:
		port = wire.PortRPC
	}
	handler, served := s.serves(port)
	if !served {
		// As Firecracker does when nobody listens: no answer, just the end.
		s.log.Debug("connection to a port that is not served", slog.Any("port", port))
		return
	}
	if ok {
		if _, err := io.WriteString(conn, wire.OKLine(port)); err != nil {
			return
		}
	}
	handler(ctx, conn, in)
}

// An opener reads a connection. It can look at the first line without taking it
// away, and gives each line its deadline without touching the deadline of a
// connection that is idle or whose lines arrive in one piece.
type opener struct {
	conn net.Conn
	buf  [256]byte
	have []byte // read and not yet returned; within buf

	mode  guardMode
	begun bool // a line is under way
	armed bool // the deadline is set
}

type guardMode int

const (
	guardOff     guardMode = iota
	guardLine              // between beginLine and endLine
	guardOneLine           // until the first newline
)

const connectPrefix = "CONNECT "

// connectLine skips blank space and takes the first line if that is a CONNECT
// line. All else is left to be read.
func (o *opener) connectLine() (port uint32, ok bool, err error) {
	o.mode = guardLine
	defer o.endLine()
	for {
		o.have = bytes.TrimLeft(o.have, " \t\r\n")
		if n := len(o.have); n > 0 {
			if start := string(o.have[:min(n, len(connectPrefix))]); !strings.HasPrefix(connectPrefix, start) {
				return 0, false, nil
			}
			i := bytes.IndexByte(o.have, '\n')
			switch {
			case i >= wire.MaxHandshakeLine, i < 0 && n >= wire.MaxHandshakeLine:
				return 0, false, nil
			case i >= 0:
				if port, ok = wire.ParseConnect(o.have[:i]); ok {
					o.have = o.have[i+1:]
				}
				return port, ok, nil
			}
		}
		o.begun = len(o.have) > 0
		n := copy(o.buf[:], o.have)
		more, err := o.readConn(o.buf[n:])
		o.have = o.buf[:n+more]
		if more == 0 && err != nil {
			return 0, false, err
		}
	}
}

// Read implements io.Reader.
func (o *opener) Read(p []byte) (int, error) {
	if len(o.have) > 0 {
		n := copy(p, o.have)
		o.have = o.have[n:]
		o.saw(p[:n])
		return n, nil
	}
	return o.readConn(p)
}

func (o *opener) readConn(p []byte) (int, error) {
	if o.mode != guardOff && o.begun && !o.armed {
		o.armed = o.conn.SetReadDeadline(time.Now().Add(lineTime)) == nil
	}
	n, err := o.conn.Read(p)
	o.saw(p[:n])
	return n, err
}

func (o *opener) saw(p []byte) {
	o.begun = o.begun || len(p) > 0
	if o.mode == guardOneLine && bytes.IndexByte(p, '\n') >= 0 {
		o.endLine()
	}
}

// beginLine says that a line is wanted, and whether a part of it is there.
func (o *opener) beginLine(begun bool) { o.mode, o.begun = guardLine, begun }

// guardOneLine says that one line is wanted, and then plain bytes.
func (o *opener) guardOneLine() { o.mode, o.begun = guardOneLine, false }

// endLine lifts the deadline.
func (o *opener) endLine() {
	o.mode = guardOff
	if o.armed {
		o.armed = false
		_ = o.conn.SetReadDeadline(time.Time{})
	}
}
