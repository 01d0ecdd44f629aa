package wiretest

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
)

// A Peer answers each Dial with a connection on which it plays a script. It can
// stand wherever a machine or a socket that leads to an agent is asked for.
type Peer struct {
	t       testing.TB
	scripts []*Script
	ctx     context.Context // the life of the test
	running sync.WaitGroup

	mu    sync.Mutex
	dials []uint32 // guarded by mu
}

// NewPeer returns a peer that plays scripts[0] on its first connection, and so on;
// the last one serves all further connections. When the test ends, stalls end,
// every connection is closed, and an expectation that was not met fails the test.
func NewPeer(t testing.TB, scripts ...string) *Peer {
	t.Helper()
	p := &Peer{t: t}
	for _, text := range scripts {
		s, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		p.scripts = append(p.scripts, s)
	}
	if len(scripts) == 0 {
		t.Fatal("a peer wants a script")
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.ctx = ctx
	t.Cleanup(func() {
		cancel()
		p.running.Wait()
	})
	return p
}

// Dial returns the other end of a new connection. It ignores ctx, and port but for
// Dials.
func (p *Peer) Dial(_ context.Context, port uint32) (net.Conn, error) {
	ours, theirs, err := Pipe()
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	s := p.scripts[min(len(p.dials), len(p.scripts)-1)]
	p.dials = append(p.dials, port)
	p.mu.Unlock()
	p.running.Go(func() {
		if err := s.Run(p.ctx, ours); err != nil && !errors.Is(err, ErrHungUp) {
			p.t.Errorf("wiretest: %v", err)
		}
	})
	return theirs, nil
}

// Dials returns the ports that have been dialled so far, in order.
func (p *Peer) Dials() []uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]uint32(nil), p.dials...)
}

// Pipe returns the two ends of a unix socket pair: unlike those of net.Pipe they
// buffer, and can close one direction.
func Pipe() (a, b *net.UnixConn, err error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	a, errA := fileConn(fds[0])
	b, errB := fileConn(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []*net.UnixConn{a, b} {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, err
	}
	return a, b, nil
}

func fileConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }() // FileConn has its own copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
