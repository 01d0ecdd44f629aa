package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// DefaultMaxConns is how many connections a Server serves at once.
const DefaultMaxConns = 1024

// Options are the parts of a Server. The zero value is useful.
type Options struct {
	// Log receives what happens; nil means nowhere.
	Log *slog.Logger
	// Version is told by the method info.
	Version string
	// Proc runs the commands. When nil the server makes one, which its Close ends.
	Proc *proc.Manager
	// ExecPort is a second number for the exec port, besides wire.PortExec.
	ExecPort uint32
	// System is what thaw renews. It is nil for an agent that shares its machine with
	// others, a test's for example: that renews nothing, and freeze stops only what
	// Proc runs.
	System System
	// MaxConns bounds the connections at once; DefaultMaxConns when 0. Those
	// beyond are closed unserved.
	MaxConns int
}

// A Server answers hosts. Its methods are safe for concurrent use.
type Server struct {
	log      *slog.Logger
	version  string
	proc     *proc.Manager
	ownsProc bool
	execPort uint32
	maxConns int
	large    *limiter
	system   System
	freezing chan struct{} // a mutex: one freeze or thaw at a time

	done chan struct{} // closed by Close
	wg   sync.WaitGroup

	mu        sync.Mutex
	closed    bool                  // guarded by mu
	conns     map[net.Conn]struct{} // guarded by mu
	listeners map[net.Listener]struct{}
	before    map[net.Conn]struct{} // conns when the guest was frozen; guarded by mu
}

// NewServer returns a server that listens nowhere yet.
func NewServer(o Options) *Server {
	s := &Server{
		log: o.Log, version: o.Version, proc: o.Proc, execPort: o.ExecPort, maxConns: o.MaxConns,
		system: o.System, freezing: make(chan struct{}, 1),
		done: make(chan struct{}), conns: map[net.Conn]struct{}{}, listeners: map[net.Listener]struct{}{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.proc == nil {
		s.proc = proc.NewManager(proc.Options{Log: s.log})
		s.ownsProc = true
	}
	if s.maxConns == 0 {
		s.maxConns = DefaultMaxConns
	}
	s.large = newLimiter(s.done)
	return s
}

// Bounds of the pause after a failed accept.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Serve accepts connections of l, which it takes over, until ctx or the server
// ends (nil is returned) or l has ended by itself: io.EOF is what a MuxListener
// says when the host went away. An accept that fails for another reason is
// logged and tried again (checklist C3). Port is the one l stands for; 0 lets
// each connection choose by a CONNECT line, and one that begins with anything
// else speaks JSON-RPC. When ctx ends, so do the connections.
func (s *Server) Serve(ctx context.Context, l net.Listener, port uint32) error {
	if !s.addListener(l) {
		return l.Close()
	}
	defer s.removeListener(l)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	pause := minAcceptPause
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = minAcceptPause
			s.start(ctx, conn, port)
			continue
		case ctx.Err() != nil || s.isClosed():
			return nil
		case hasEnded(l, err):
			return err
		}
		s.log.Error("cannot accept connection", slog.Any("error", err))
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxAcceptPause)
		case <-ctx.Done():
		case <-s.done:
		}
	}
}

// hasEnded tells the end of a listener from an accept that failed.
func hasEnded(l net.Listener, err error) bool {
	switch l.(type) {
	case *vsock.MuxListener, *vsock.LaneListener:
		return true
	}
	return errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)
}

// start serves conn in a goroutine of its own.
func (s *Server) start(ctx context.Context, conn net.Conn, port uint32) {
	switch err := s.addConn(conn); {
	case errors.Is(err, errTooMany):
		s.log.Warn("too many connections", slog.Int("limit", s.maxConns))
		fallthrough
	case err != nil:
		_ = conn.Close()
		return
	}
	go s.serveConn(ctx, conn, port)
}

// ServeConn serves one connection, which it takes over, and returns when that
// has ended. When ctx or the server ends, so does the connection.
func (s *Server) ServeConn(ctx context.Context, conn net.Conn, port uint32) {
	if s.addConn(conn) != nil {
		_ = conn.Close()
		return
	}
	s.serveConn(ctx, conn, port)
}

func (s *Server) serveConn(ctx context.Context, conn net.Conn, port uint32) {
	defer s.removeConn(conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	defer s.logPanic()
	s.route(ctx, conn, port)
}

// logPanic is deferred where a defect must end one connection and not the guest.
func (s *Server) logPanic() {
	if v := recover(); v != nil {
		s.log.Error("connection ended by a defect of the agent", slog.Any("panic", v), slog.String("stack", stack()))
	}
}

var (
	errClosed  = errors.New("server is closed")
	errTooMany = errors.New("too many connections")
)

func (s *Server) addConn(conn net.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	if len(s.conns) >= s.maxConns {
		return errTooMany
	}
	s.conns[conn] = struct{}{}
	s.wg.Add(1)
	return nil
}

func (s *Server) removeConn(conn net.Conn) {
	_ = conn.Close()
	s.mu.Lock()
	delete(s.conns, conn)
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) addListener(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.listeners[l] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) removeListener(l net.Listener) {
	_ = l.Close()
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	s.wg.Done()
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close ends all listeners, connections and the commands that run for them, and
// the process manager if the server made it. It returns when all are gone, is
// idempotent and never fails.
func (s *Server) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	var ends []io.Closer
	if first {
		close(s.done)
		for l := range s.listeners {
			ends = append(ends, l)
		}
		for c := range s.conns {
			ends = append(ends, c)
		}
	}
	s.mu.Unlock()
	for _, c := range ends {
		_ = c.Close()
	}
	s.wg.Wait()
	if s.ownsProc {
		s.proc.Close()
	}
	return nil
}

// serves reports which protocol a port number means.
func (s *Server) serves(port uint32) (handler func(context.Context, net.Conn, *opener), ok bool) {
	switch {
	case port == wire.PortRPC:
		return s.serveRPC, true
	case port == wire.PortExec || port == s.execPort && port != 0:
		return s.serveExecPort, true
	default:
		return nil, false
	}
}

// serveExecPort hands a connection over to the exec protocol.
func (s *Server) serveExecPort(ctx context.Context, conn net.Conn, in *opener) {
	in.guardOneLine()
	lines := wire.NewLineReader(in, wire.MaxExecLine, s.large)
	defer lines.Close()
	s.serveExec(ctx, conn, lines)
}
