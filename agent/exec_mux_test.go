package agent_test

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

// The exec port through a mux, where a stream cannot be half-closed and a host that
// goes says so behind all that it has sent.
func TestExecMux(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	host, guest := socketpair(t)
	mux := vsock.NewMux(host)
	s := agent.NewServer(agent.Options{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), vsock.NewMuxListener(guest), 0) }()
	open := func(t *testing.T, request string) *execution {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conn, err := mux.Dial(ctx, 10700)
		if err != nil {
			t.Fatal(err)
		}
		x := &execution{client: newClient(t, conn)}
		x.send(request + "\n")
		return x
	}
	each(t, func(t *testing.T, framing string) {
		begin := func(t *testing.T, script string) *execution {
			x := open(t, shRequest(script, framing))
			x.binary = framing == `"framing":"binary"`
			return x
		}
		t.Run("output, stdin, code", func(t *testing.T) {
			x := begin(t, "head -c 5000000 /dev/zero; cat; exit 3")
			x.stdin("data")
			x.eof()
			if o := x.finish(); len(o.stdout) != 5000004 || o.exit.ExitCode != 3 {
				t.Errorf("got %d bytes and %+v", len(o.stdout), o.exit)
			}
		})
		t.Run("a stopped reader holds nobody else up (T09)", func(t *testing.T) {
			stopped := begin(t, "yes")
			for range 3 {
				if o := begin(t, "head -c 3000000 /dev/zero").finish(); len(o.stdout) != 3000000 {
					t.Errorf("got %d bytes", len(o.stdout))
				}
			}
			_ = stopped.Close()
		})
		t.Run("disconnect kills", func(t *testing.T) {
			mark := marker(t)
			x := begin(t, "echo ready; exec sleep "+mark)
			x.awaitOutput("ready")
			_ = x.Close()
			awaitGone(t, mark)
		})
		t.Run("disconnect kills behind unread stdin (T11, T15)", func(t *testing.T) {
			mark := marker(t)
			x := begin(t, "echo ready; exec sleep "+mark)
			x.awaitOutput("ready")
			var sender sync.WaitGroup
			sent := make(chan struct{}, 1)
			sender.Go(func() {
				for {
					if _, err := x.Write(stdinFrame(x, 256<<10)); err != nil {
						return
					}
					select {
					case sent <- struct{}{}:
					default:
					}
				}
			})
			for range 6 { // more than the agent takes: the rest of it is under way
				<-sent
			}
			_ = x.Close()
			sender.Wait()
			awaitGone(t, mark)
		})
	})
	if err := mux.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, io.EOF) {
		t.Errorf("Serve ended with %v, want io.EOF when the host goes", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
