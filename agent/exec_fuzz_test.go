package agent_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// FuzzExecConn sends arbitrary bytes to the exec port, as a whole connection or
// after a good request. Whatever they are, the session ends when the host goes,
// and nothing is left running. T17, T18.
func FuzzExecConn(f *testing.F) {
	const cat, catBinary = `{"command":["cat"]}` + "\n", `{"command":["cat"],"framing":"binary","started":true}` + "\n"
	for _, s := range []string{
		cat + `{"type":"stdin","data":"aGk="}` + "\n" + `{"type":"eof"}` + "\n",
		cat + `{"type":"stdin","data":"plain"}` + "\n" + `{"type":"resize","cols":3,"rows":4}` + "\n",
		cat + `{"type":"eof"}` + "\n" + `{"type":"stdin","data":"eA=="}` + "\n",
		cat + `{"type":"signal","signal":15}` + "\n",
		`{"command":["cat"],"tty":true}` + "\n" + `{"type":"resize","cols":3,"rows":4}` + "\n" + `{"type":"eof"}` + "\n",
		catBinary + "\x01\x00\x00\x00\x02hi\x04\x00\x00\x00\x0e{\"type\":\"eof\"}",
		catBinary + "\x01\xff\xff\xff\xff",
		`{"command":["true"],"detach":true,"id":"a","timeout_ms":1}` + "\n",
		`{"attach":"a","replay_from":0}` + "\n",
		`{"command":[]}` + "\n", "\n\n", "{", "\x00",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	m := proc.NewManager(proc.Options{})
	s := agent.NewServer(agent.Options{Proc: m})
	f.Cleanup(m.Close)
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, data []byte, half bool) {
		detached := false
		for line := range bytes.SplitSeq(data, []byte("\n")) {
			req, err := wire.DecodeExecRequest(line)
			if err != nil {
				continue
			}
			// Nothing is run here but these two: a fuzzer finds other commands, too.
			if req.Attach == "" && !slices.Equal(req.Command, []string{"cat"}) && !slices.Equal(req.Command, []string{"true"}) || len(req.Env) > 0 {
				t.Skip("a command that is not to be run")
			}
			detached = detached || req.Detach || req.Attach != ""
		}
		host, guest := socketpair(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			s.ServeConn(context.Background(), guest, wire.PortExec)
		}()
		defer func() { _ = host.Close() }()
		if err := host.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		// The port is settled here, or the bytes could choose that of JSON-RPC.
		_, _ = host.Write(append([]byte("CONNECT 10700\n"), data...))
		if half && !detached {
			_ = host.CloseWrite()
			if _, err := io.Copy(io.Discard, host); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the session does not end with its input")
			}
		}
		_ = host.Close()
		select {
		case <-served:
		case <-time.After(patience):
			t.Fatal("the connection does not end when the host has gone")
		}
		for _, info := range m.List() {
			if p := m.Get(info.ID); p != nil && info.Running {
				p.Kill()
				continue
			}
			if info.Running {
				t.Errorf("process is left: %+v", info)
			}
		}
	})
}
