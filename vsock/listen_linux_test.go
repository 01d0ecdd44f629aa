package vsock_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	mdlayher "github.com/mdlayher/vsock"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

func TestListenWithoutDevice(t *testing.T) { // C2
	vsock.SetDevice(t, filepath.Join(t.TempDir(), "vsock"))
	_, err := vsock.Listen(52)
	if want := "/dev/vsock does not exist - vsock kernel module may not be loaded"; err == nil || err.Error() != want || !errors.Is(err, vsock.ErrNoDevice) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// C1: the agent's port, on a kernel that has the family.
func TestListen(t *testing.T) {
	if _, err := os.Stat("/dev/vsock"); err != nil {
		t.Skipf("no AF_VSOCK (%v): `modprobe vsock`", err)
	}
	testutil.Ledger(t, testutil.Scope{})
	l, err := vsock.Listen(51234)
	if err != nil {
		t.Skipf("cannot listen (%v): AF_VSOCK needs a transport, `modprobe vsock_loopback`", err)
	}
	accepted := result(func() error { _, err := l.Accept(); return err })
	// T25: a program beside the agent, where the kernel has a loopback.
	if c, err := mdlayher.Dial(mdlayher.Local, 51234, nil); err == nil {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a local program was not refused: %v", err)
		}
		_ = c.Close()
	} else {
		t.Logf("no loopback to try (%v)", err)
	}
	_ = l.Close()
	if err := soon(t, "Accept", accepted); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}

// from is a conn that says where it comes from.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// queue is a listener of conns that are already there.
type queue struct{ conns []net.Conn }

func (q *queue) Accept() (net.Conn, error) {
	if len(q.conns) == 0 {
		return nil, net.ErrClosed
	}
	c := q.conns[0]
	q.conns = q.conns[1:]
	return c, nil
}
func (q *queue) Close() error   { return nil }
func (q *queue) Addr() net.Addr { return nil }

// T25: only the host may reach the agent's port.
func TestListenHostOnly(t *testing.T) {
	var q queue
	var peers []net.Conn
	for _, addr := range []net.Addr{
		&mdlayher.Addr{ContextID: 1, Port: 7},          // loopback
		&mdlayher.Addr{ContextID: 3, Port: 7},          // the guest itself, or a sibling
		&mdlayher.Addr{ContextID: 0xFFFFFFFF, Port: 7}, // any
		&net.UnixAddr{Name: "x"},
		&mdlayher.Addr{ContextID: mdlayher.Host, Port: 7},
	} {
		ours, theirs := net.Pipe()
		q.conns, peers = append(q.conns, from{ours, addr}), append(peers, theirs)
	}
	l := vsock.HostOnly(&q)
	c, err := l.Accept()
	if err != nil || c.RemoteAddr().(*mdlayher.Addr).ContextID != mdlayher.Host {
		t.Fatalf("got %v, %v, want the host's", c, err)
	}
	for i, p := range peers {
		_ = p.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		_, err := p.Read(make([]byte, 1))
		if refused := errors.Is(err, io.EOF); refused == (i == len(peers)-1) {
			t.Errorf("peer %d: got %v", i, err)
		}
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want %v", err, net.ErrClosed)
	}
}
