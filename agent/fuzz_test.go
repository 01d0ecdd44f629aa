package agent_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
)

// FuzzServeConn sends any bytes to either port, or to none. The agent must not
// panic, and must end the connection when its peer does. T17, T18.
func FuzzServeConn(f *testing.F) {
	for _, seed := range []string{
		"", "\n", pingLine, "CONNECT 52\n" + pingLine, "CONNECT 10700\n{}\n", "CONNECT 10700\n" + `{"command":[""]}` + "\n", "CONNECT 7\n",
		`{"jsonrpc":"2.0","id":1,"method":"nothing","params":[[[{"a":{}}]]]}` + "\n",
		`{"jsonrpc":"2.0","id":1,"method":"info"}` + "\n" + pingLine + "{",
		`{"jsonrpc":"2.0","id":1,"method":"list_dir","params":{"path":"/proc/self/task"}}` + "\n",
		`{"jsonrpc":"2.0","id":1,"method":"stat","params":{"path":"\u0000"}}` + "\n",
		`{"jsonrpc":"2.0","id":1,"method":"download","params":{"path":"/proc/self/stat"}}` + "\n" + "\x05\xff\xff\xff\xff",
		`{"jsonrpc":"2.0","id":1,"method":"signal","params":{"pid":-1,"signal":9,"group":true}}` + "\n",
		`{"attach":"x"}` + "\n", `{"command":["/nowhere"],"framing":"binary","started":true}` + "\n\x01\x00\x00\x00\x01x\x07",
	} {
		for _, port := range []uint32{0, 52, 10700} {
			f.Add(port, []byte(seed))
		}
	}
	s := agent.NewServer(agent.Options{})
	f.Cleanup(func() { _ = s.Close() })
	f.Fuzz(func(t *testing.T, port uint32, data []byte) {
		if harmful(string(data)) {
			t.Skip("these bytes could make the agent change this machine: run them against an agent in a sandbox")
		}
		ours, theirs := net.Pipe()
		done := make(chan struct{})
		go func() {
			s.ServeConn(context.Background(), theirs, port)
			close(done)
		}()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		_ = ours.SetWriteDeadline(time.Now().Add(patience))
		_, _ = ours.Write(data)
		_ = ours.Close()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("the connection has not ended")
		}
	})
}

// harmful reports whether bytes may be a request that runs or writes something.
// Escapes could hide its name, so no escapes are let through either.
func harmful(data string) bool {
	data = strings.NewReplacer(`"command":[""]`, "", `"command":["/nowhere"]`, "").Replace(data)
	return slices.ContainsFunc([]string{
		"exec", "write_file", "make_dir", "move", "remove", "upload", "forward", "watch", "command", `\u`,
	}, func(word string) bool { return strings.Contains(data, word) })
}
