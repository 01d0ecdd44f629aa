package bouvet_test

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
)

// dials hands on the connections to the exec port that a client dials.
type dials struct {
	bouvet.Dialer
	exec chan net.Conn
}

func (d dials) Dial(ctx context.Context, port uint32) (net.Conn, error) {
	conn, err := d.Dialer.Dial(ctx, port)
	if err == nil && port == wire.PortExec {
		conn = &watched{Conn: conn}
		d.exec <- conn
	}
	return conn, err
}

// watched says whether it was closed.
type watched struct {
	net.Conn
	mu     sync.Mutex
	closed bool
}

func (w *watched) Quiet() bool {
	q, ok := w.Conn.(interface{ Quiet() bool })
	return ok && q.Quiet()
}

func (w *watched) Close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	return w.Conn.Close()
}

func (w *watched) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// While a command runs the connection of the next is dialled, which a broken one
// does not harm, and the client's end is its end.
func TestDialAhead(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	driver := vmtest.NewFake(t, vmtest.FakeOptions{})
	m, err := driver.Create(t.Context(), vm.Config{ID: bouvet.NewSandboxID().String(), Image: "/image", MemoryMiB: 64, VCPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = m.Destroy(context.Background(), 0) }()
	d := dials{m, make(chan net.Conn, 16)}
	c := connect(t, d, &bouvet.ClientOptions{DialAhead: true})
	const commands = 10
	for range commands {
		if err := c.Command(t.Context(), "true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	// One each, and the one that is ready for the next.
	open := 0
	for range commands + 1 {
		if !(<-d.exec).(*watched).isClosed() {
			open++
		}
	}
	if open != 1 {
		t.Errorf("%d connections are open after %d commands, want 1", open, commands)
	}
	select {
	case <-d.exec:
		t.Errorf("dialled more than %d times for %d commands", commands+1, commands)
	default:
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
