package agent_test

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
)

func TestRequestLines(t *testing.T) {
	socket := startServer(t, agent.Options{})
	const pong = `"result":{"pong":true}`
	for _, c := range []struct {
		name, line string
		id         uint64
		want       string // within the answer
	}{
		{"D1 L20 ping", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`, 1, pong},
		{"B2 largest id", `{"jsonrpc":"2.0","id":18446744073709551615,"method":"ping"}`, 1<<64 - 1, pong},
		{"B2 id 0", `{"jsonrpc":"2.0","id":0,"method":"ping"}`, 0, pong},
		{"B2 id beyond u64", `{"jsonrpc":"2.0","id":18446744073709551616,"method":"ping"}`, 0, `"code":-32600`},
		{"B2 negative id", `{"jsonrpc":"2.0","id":-1,"method":"ping"}`, 0, `"code":-32600`},
		{"B2 string id", `{"jsonrpc":"2.0","id":"7","method":"ping"}`, 0, `"code":-32600`},
		{"L10 no id", `{"jsonrpc":"2.0","method":"ping"}`, 0, `"code":-32600`},
		{"B3 no params", `{"jsonrpc":"2.0","id":2,"method":"ping"}`, 2, pong},
		{"B3 null params", `{"jsonrpc":"2.0","id":3,"method":"ping","params":null}`, 3, pong},
		{"B3 array params", `{"jsonrpc":"2.0","id":4,"method":"ping","params":[]}`, 4, pong},
		{"B3 positional params", `{"jsonrpc":"2.0","id":4,"method":"exec","params":["true"]}`, 4, `"code":-32602`},
		{"L9 empty params for exec", `{"jsonrpc":"2.0","id":4,"method":"exec","params":[]}`, 4, `"code":-32602`},
		{"unknown fields", `{"x":[{}],"jsonrpc":"2.0","id":5,"method":"ping","params":{"y":1}}`, 5, pong},
		{"spaces and CR", "  {\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"ping\"} \r", 5, pong},
		{"C6 no JSON", `hello`, 0, `"code":-32700,"message":"parse error: `},
		{"C6 half", `{"jsonrpc":"2.0","id":6`, 0, `"code":-32700`},
		{"C6 two values", `{} {}`, 0, `"code":-32700`},
		{"C6 invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"\xff\"}", 0, `"code":-32700`},
		{"T17 NUL byte", "{\"jsonrpc\":\"2.0\",\x00\"id\":6}", 0, `"code":-32700`},
		{"T17 deep", strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000), 0, `"code":-32700`},
		{"T17 huge number", `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, 0, `"code":-32600`},
		{"C7 an array", `[]`, 0, `"code":-32600`},
		{"C7 a string", `"ping"`, 0, `"code":-32600`},
		{"L10 wrong version", `{"jsonrpc":"1.0","id":7,"method":"ping"}`, 7, `"code":-32600`},
		{"L10 no version", `{"id":7,"method":"ping"}`, 7, `"code":-32600`},
		{"L10 no method", `{"jsonrpc":"2.0","id":8}`, 8, `"code":-32600`},
		{"C7 method is a number", `{"jsonrpc":"2.0","id":9,"method":5}`, 9, `"code":-32600`},
		{"T17 duplicate key", `{"jsonrpc":"2.0","id":9,"method":"ping","method":"exec"}`, 9, `"code":-32600`},
		{"T17 duplicate key in params", `{"jsonrpc":"2.0","id":9,"method":"exec","params":{"cmd":"true","cmd":"id"}}`, 9, `"code":-32600`},
		{"T17 other case", `{"jsonrpc":"2.0","id":9,"METHOD":"ping"}`, 9, `"code":-32600`},
		{"T17 folded letter", `{"jsonrpc":"2.0","id":9,"method":"ping","paramſ":{}}`, 9, pong},
		{"C8 unknown method", `{"jsonrpc":"2.0","id":10,"method":"unknown","params":{}}`, 10, `"code":-32601,"message":"method not found: unknown"`},
		{"C8 PING", `{"jsonrpc":"2.0","id":10,"method":"PING"}`, 10, `"code":-32601,"message":"method not found: PING"`},
		{"C9 exec without cmd", `{"jsonrpc":"2.0","id":11,"method":"exec","params":{}}`, 11, `"code":-32602,"message":"invalid params: `},
		{"C9 cmd is null", `{"jsonrpc":"2.0","id":11,"method":"exec","params":{"cmd":null}}`, 11, `"code":-32602`},
		{"C9 cmd is a number", `{"jsonrpc":"2.0","id":11,"method":"exec","params":{"cmd":1}}`, 11, `"code":-32602`},
		{"C9 CMD", `{"jsonrpc":"2.0","id":11,"method":"exec","params":{"CMD":"true"}}`, 11, `"code":-32602`},
		{"C9 exec_code without code", `{"jsonrpc":"2.0","id":11,"method":"exec_code","params":{"lang":"sh"}}`, 11, `"code":-32602`},
		{"C9 exec_code without lang", `{"jsonrpc":"2.0","id":11,"method":"exec_code","params":{"code":"true"}}`, 11, `"code":-32602`},
		{"C9 read_file without path", `{"jsonrpc":"2.0","id":11,"method":"read_file"}`, 11, `"code":-32602`},
		{"C9 write_file without content", `{"jsonrpc":"2.0","id":11,"method":"write_file","params":{"path":"/tmp/never"}}`, 11, `"code":-32602`},
		{"C9 list_dir without path", `{"jsonrpc":"2.0","id":11,"method":"list_dir","params":{}}`, 11, `"code":-32602`},
		{"C9 params is a string", `{"jsonrpc":"2.0","id":11,"method":"exec","params":"x"}`, 11, `"code":-32602`},
		{"T10 NUL in cmd", `{"jsonrpc":"2.0","id":12,"method":"exec","params":{"cmd":"a\u0000b"}}`, 12, `"code":-32602`},
		{"T10 NUL in env", `{"jsonrpc":"2.0","id":12,"method":"exec","params":{"cmd":"true","env":["A=\u0000"]}}`, 12, `"code":-32602`},
		{"T10 NUL in path", `{"jsonrpc":"2.0","id":12,"method":"read_file","params":{"path":"/a\u0000b"}}`, 12, `"code":-32602`},
		{"env without =", `{"jsonrpc":"2.0","id":12,"method":"exec","params":{"cmd":"true","env":["A"]}}`, 12, `"code":-32602`},
	} {
		t.Run(c.name, func(t *testing.T) {
			// A connection for each, and a ping on it after: no line breaks it.
			conn := dial(t, socket)
			conn.send(c.line + "\n")
			line := conn.line()
			var r response
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatalf("answer %q: %v", line, err)
			}
			if r.ID != c.id || r.JSONRPC != "2.0" || !strings.Contains(line, c.want) {
				t.Errorf("got  %s\nwant id %d and %s", line, c.id, c.want)
			}
			if strings.Contains(line, `"data"`) {
				t.Errorf("answer has error data: %s", line) // L9
			}
			if got := must[m](conn, "ping", m{}); got["pong"] != true {
				t.Errorf("ping after it: %v", got)
			}
		})
	}
}

// B1: an answer is one line, however it is asked, and answers come in the order
// of the requests.
func TestManyRequestsInOnePacket(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	c.send("\n \r\n" + `{"jsonrpc":"2.0","id":1,"method":"exec","params":{"cmd":"echo one"}}` + "\n\n" +
		`{"jsonrpc":"2.0","id":2,"method":"exec","params":{"cmd":"echo two"}}` + "\n" +
		`{"jsonrpc":"2.0","id":3,"method":"nothing"}` + "\n")
	for id, want := range []string{"one", "two", "method not found"} {
		line := c.line()
		if !strings.Contains(line, want) {
			t.Errorf("answer %d is %s, want %s", id+1, line, want)
		}
	}
}

// A peer that has sent all it wants to say still gets its answers.
func TestHalfClosedConnectionIsAnswered(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	c.request("exec", m{"cmd": "echo a; exec sleep 0.05"})
	c.request("exec", m{"cmd": "echo b"})
	if err := c.Conn.(*net.UnixConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"stdout":"a\n"`, `"stdout":"b\n"`} {
		if line := c.line(); !strings.Contains(line, want) {
			t.Errorf("got %s, want %s", line, want)
		}
	}
	c.expectEnd()
}

// C10: every failed file operation says what it could not do, to what, and why.
func TestTextsOfFileErrors(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	if err := os.WriteFile(big, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, 10<<20+1); err != nil {
		t.Fatal(err)
	}
	latin := filepath.Join(dir, "latin1")
	if err := os.WriteFile(latin, []byte("caf\xe9"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := dial(t, startServer(t, agent.Options{}))
	none := filepath.Join(dir, "none")
	for _, x := range []struct {
		method string
		params m
		want   string
	}{
		{"read_file", m{"path": none}, "failed to stat '" + none + "': no such file or directory"},
		{"read_file", m{"path": big}, "file '" + big + "' is too large (10485761 bytes, max 10485760 bytes)"},
		{"read_file", m{"path": dir}, "failed to read '" + dir + "': is a directory"},
		{"read_file", m{"path": latin}, `encoding":"base64"`},
		{"write_file", m{"path": big + "/x", "content": ""}, "failed to create directories for '" + big + "/x': not a directory"},
		{"write_file", m{"path": dir, "content": ""}, "failed to write '" + dir + "': is a directory"},
		{"list_dir", m{"path": none}, "failed to read directory '" + none + "': no such file or directory"},
		{"list_dir", m{"path": big}, "failed to read directory '" + big + "': not a directory"},
		{"stat", m{"path": none}, "failed to stat '" + none + "': no such file or directory"},
		{"move", m{"from": none, "to": dir + "/x"}, "failed to move '" + none + "': no such file or directory"},
		{"remove", m{"path": none}, "failed to remove '" + none + "': no such file or directory"},
		{"make_dir", m{"path": big}, "failed to create directory '" + big + "': not a directory"},
		{"download", m{"path": none}, "failed to read '" + none + "': no such file or directory"},
		{"upload", m{"path": dir}, "failed to write '" + dir + "': is a directory"},
		{"watch", m{"path": none}, "failed to watch '" + none + "': no such file or directory"},
		{"forward", m{"port": 1}, "failed to connect to port 1: connection refused"},
	} {
		refuse(c, -32603, x.want, x.method, x.params)
	}
}
