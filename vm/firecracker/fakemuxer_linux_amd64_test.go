package firecracker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
)

// guestDelay is how long a fake guest takes to start.
const guestDelay = 20 * time.Millisecond

// A fakeGuest is the real agent behind a socket that behaves as Firecracker's does.
type fakeGuest struct {
	agent  *handover
	silent bool // it never comes up

	mu      sync.Mutex
	moves   chan struct{} // closed while the guest's processors run
	running bool
	next    uint32
	streams map[*fakeStream]struct{}
}

// A fakeStream is both ends of one.
type fakeStream struct {
	host, guest net.Conn
	reset       bool // guarded by fakeGuest.mu: the guest has forgotten it
}

// A handover is a listener of connections that somebody has made already.
type handover struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handover) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "agent"} }

// newFakeGuest serves the host's connections from l. The guest stands still.
func newFakeGuest(l net.Listener, silent bool) *fakeGuest {
	g := &fakeGuest{
		agent: &handover{conns: make(chan net.Conn), done: make(chan struct{})}, silent: silent,
		moves: make(chan struct{}), streams: map[*fakeStream]struct{}{},
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go g.serve(conn)
		}
	}()
	return g
}

// start begins the guest's life.
func (g *fakeGuest) start() {
	go vmtest.Agent(context.Background(), g.agent)
	if !g.silent {
		time.AfterFunc(guestDelay, g.resume)
	}
}

func (g *fakeGuest) resume() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.running {
		g.running = true
		close(g.moves)
	}
}

func (g *fakeGuest) pause() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running {
		g.running, g.moves = false, make(chan struct{})
	}
}

// move waits until the guest's processors run.
func (g *fakeGuest) move() {
	g.mu.Lock()
	moves := g.moves
	g.mu.Unlock()
	<-moves
}

// forget does what saving a machine does to its vsock: the guest's ends are gone, and
// the host hears of it when it next says something.
func (g *fakeGuest) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for s := range g.streams {
		s.reset = true
		_ = s.guest.Close()
	}
}

// serve reads a CONNECT line as Firecracker does: ten bytes and then one by one, at
// most 32, and never waits for one that comes in pieces.
func (g *fakeGuest) serve(host net.Conn) {
	line := make([]byte, wire.MaxHandshakeLine)
	n, err := host.Read(line)
	command, number, ok := strings.Cut(strings.TrimSuffix(string(line[:n]), "\n"), " ")
	port, portErr := strconv.ParseUint(number, 10, 32)
	if err != nil || n < 10 || line[n-1] != '\n' || !ok || !strings.EqualFold(command, "connect") || portErr != nil {
		_ = host.Close()
		return
	}
	g.move() // a guest that is not up does not answer, and nor does Firecracker
	if uint32(port) != wire.PortRPC && uint32(port) != wire.PortExec {
		_ = host.Close()
		return
	}
	guest, err := g.connect(uint32(port))
	if err != nil {
		_ = host.Close()
		return
	}
	s := &fakeStream{host: host, guest: guest}
	g.mu.Lock()
	g.streams[s] = struct{}{}
	number = strconv.FormatUint(1<<30+uint64(g.next), 10)
	g.next++
	g.mu.Unlock()
	if _, err := io.WriteString(host, "OK "+number+"\n"); err != nil {
		_, _ = host.Close(), guest.Close()
		return
	}
	go g.toHost(s)
	g.toGuest(s)
}

// connect asks the agent for a port.
func (g *fakeGuest) connect(port uint32) (net.Conn, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	var conns [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socketpair")
		if conns[i], err = net.FileConn(f); err != nil {
			return nil, err
		}
		_ = f.Close()
	}
	g.agent.conns <- conns[1]
	if _, err := io.WriteString(conns[0], wire.ConnectLine(port)); err != nil {
		return nil, err
	}
	// The agent says nothing more before it is asked.
	if line, err := bufio.NewReader(conns[0]).ReadString('\n'); err != nil || !strings.HasPrefix(line, "OK ") {
		_ = conns[0].Close()
		return nil, fmt.Errorf("%q: %w", line, err)
	}
	return conns[0], nil
}

// toGuest carries what the host says. There is no half of an end: the host's is both.
func (g *fakeGuest) toGuest(s *fakeStream) {
	g.carry(s.guest, s.host)
	_, _ = s.host.Close(), s.guest.Close()
	g.mu.Lock()
	delete(g.streams, s)
	g.mu.Unlock()
}

func (g *fakeGuest) toHost(s *fakeStream) {
	g.carry(s.host, s.guest)
	g.mu.Lock()
	defer g.mu.Unlock()
	if !s.reset {
		_ = s.host.Close()
	}
}

func (g *fakeGuest) carry(dst io.Writer, src io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		g.move()
		n, err := src.Read(buf)
		g.move()
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
