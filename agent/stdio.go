package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vsock"
)

// serveStdio serves the one connection that standard input and output are.
func (p *Program) serveStdio(ctx context.Context, s *Server, port uint32) error {
	if _, ok := s.serves(port); !ok {
		return fmt.Errorf("port %d is not served", port)
	}
	conn, err := newStdioConn(p.Stdin, p.Stdout)
	if err != nil {
		return fmt.Errorf("cannot use standard input and output: %w", err)
	}
	s.ServeConn(ctx, conn, port)
	return nil
}

// A stdioConn is a connection made of two descriptors.
type stdioConn struct{ in, out *os.File }

func newStdioConn(in, out *os.File) (*stdioConn, error) {
	i, err := pollable(in)
	if err != nil {
		return nil, err
	}
	o, err := pollable(out)
	if err != nil {
		return nil, errors.Join(err, i.Close())
	}
	return &stdioConn{i, o}, nil
}

// pollable returns a duplicate of f whose reads and writes Close can end, where
// the kernel allows that. Terminals and regular files keep their mode, which they
// share with other programs.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFIFO || kind == unix.S_IFSOCK {
		if err := unix.SetNonblock(fd, true); err != nil {
			return nil, errors.Join(err, unix.Close(fd))
		}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func (c *stdioConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *stdioConn) Write(b []byte) (int, error) { return c.out.Write(b) }
func (c *stdioConn) Close() error                { return errors.Join(c.in.Close(), c.out.Close()) }

// AwaitHangup is for vsock.AwaitHangup: the peer is gone when nobody reads our
// output any more. The end of the input alone means only that it has no more to say.
func (c *stdioConn) AwaitHangup() bool {
	rc, err := c.out.SyscallConn()
	return err != nil || vsock.AwaitHangupFD(rc)
}

func (c *stdioConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline also bounds AwaitHangup, which watches the output.
func (c *stdioConn) SetReadDeadline(t time.Time) error {
	return errors.Join(ifPollable(c.in.SetReadDeadline(t)), ifPollable(c.out.SetReadDeadline(t)))
}

func (c *stdioConn) SetWriteDeadline(t time.Time) error {
	return ifPollable(c.out.SetWriteDeadline(t))
}

// ifPollable passes over that a descriptor which cannot be polled has no deadlines.
func ifPollable(err error) error {
	if errors.Is(err, os.ErrNoDeadline) {
		return nil
	}
	return err
}

func (c *stdioConn) LocalAddr() net.Addr  { return stdioAddr{} }
func (c *stdioConn) RemoteAddr() net.Addr { return stdioAddr{} }

type stdioAddr struct{}

func (stdioAddr) Network() string { return "stdio" }
func (stdioAddr) String() string  { return "stdio" }
