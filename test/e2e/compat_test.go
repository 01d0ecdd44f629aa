package e2e

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// A host of seed 000: one connection, one request at a time, plain members only.
// The answers hold what its types know, and nothing that they do not.
func TestOldRPCHost(t *testing.T) {
	s := box(t, bouvet.Config{})
	conn := dial(t, s, wire.PortRPC)
	r := bufio.NewReaderSize(conn, 1<<16)
	for i, tt := range []struct{ method, params, want string }{
		{"ping", `{}`, `{"jsonrpc":"2.0","id":N,"result":{"pong":true}}`},
		{"ping", `null`, `{"jsonrpc":"2.0","id":N,"result":{"pong":true}}`},
		{"exec", `{"cmd":"echo out; echo err >&2; exit 3"}`, `{"jsonrpc":"2.0","id":N,"result":{"exit_code":3,"stdout":"out\n","stderr":"err\n"}}`},
		{"exec_code", `{"lang":"python","code":"print(6*7)"}`, `{"jsonrpc":"2.0","id":N,"result":{"exit_code":0,"stdout":"42\n","stderr":""}}`},
		{"exec_code", `{"lang":"Node","code":"console.log(6*7)"}`, `{"jsonrpc":"2.0","id":N,"result":{"exit_code":0,"stdout":"42\n","stderr":""}}`},
		{"exec_code", `{"lang":"bash","code":"echo $((6*7))"}`, `{"jsonrpc":"2.0","id":N,"result":{"exit_code":0,"stdout":"42\n","stderr":""}}`},
		{"exec_code", `{"lang":"cobol","code":""}`, `{"jsonrpc":"2.0","id":N,"result":{"exit_code":-1,"stdout":"","stderr":"unsupported language: cobol"}}`},
		{"write_file", `{"path":"/old/a/file","content":"text\n"}`, `{"jsonrpc":"2.0","id":N,"result":{"success":true}}`},
		{"read_file", `{"path":"/old/a/file"}`, `{"jsonrpc":"2.0","id":N,"result":{"content":"text\n"}}`},
		{"list_dir", `{"path":"/old"}`, `{"jsonrpc":"2.0","id":N,"result":{"entries":[{"name":"a","is_dir":true,"size":0}]}}`},
		{"list_dir", `{"path":"/old/a"}`, `{"jsonrpc":"2.0","id":N,"result":{"entries":[{"name":"file","is_dir":false,"size":5}]}}`},
		{"read_file", `{"path":"/no"}`, `-32603`},
		{"read_file", `{}`, `-32602`},
		{"no_such_method", `{}`, `{"jsonrpc":"2.0","id":N,"error":{"code":-32601,"message":"method not found: no_such_method"}}`},
	} {
		id := itoa(i + 1)
		if _, err := io.WriteString(conn, `{"jsonrpc":"2.0","id":`+id+`,"method":"`+tt.method+`","params":`+tt.params+"}\n"); err != nil {
			t.Fatal(err)
		}
		line, err := r.ReadBytes('\n')
		if err != nil {
			t.Fatal(err)
		}
		if code, numeric := strings.CutPrefix(tt.want, "-"); numeric {
			if !strings.HasPrefix(string(line), `{"jsonrpc":"2.0","id":`+id+`,"error":{"code":-`+code+`,"message":"`) {
				t.Errorf("%s %s: got %s, want error -%s", tt.method, tt.params, line, code)
			}
			continue
		}
		if want := strings.Replace(tt.want, `"id":N`, `"id":`+id, 1); !sameJSON(t, line, want) {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.params, line, want)
		}
	}
	if _, err := io.WriteString(conn, "this is not JSON\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadBytes('\n'); err != nil || !bytes.Contains(line, []byte(`"code":-32700`)) {
		t.Errorf("got %s, %v, want -32700", line, err)
	}
}

// sameJSON compares two texts as JSON, numbers to the digit.
func sameJSON(t *testing.T, got []byte, want string) bool {
	t.Helper()
	var a, b any
	for text, v := range map[string]*any{string(got): &a, want: &b} {
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return bytes.Equal(x, y)
}

// oldFrame is what a host of seed 001 knows of a frame; it is not to see more.
type oldFrame struct {
	Type     string `json:"type"`
	Data     string `json:"data"`
	ExitCode int    `json:"exit_code"`
	Error    string `json:"error"`
}

// A host of seed 001: a command on a connection, lines only, and frames of three
// types.
func TestOldExecHost(t *testing.T) {
	s := box(t, bouvet.Config{})
	frame := func(typ, data string) string {
		return `{"type":"` + typ + `","data":"` + base64.StdEncoding.EncodeToString([]byte(data)) + `"}` + "\n"
	}
	const eof = `{"type":"eof"}` + "\n"
	for _, tt := range []struct {
		name, send     string
		stdout, stderr string
		exit           oldFrame
	}{
		{"true", `{"command":["true"]}` + "\n", "", "", oldFrame{}},
		{"output", `{"command":["sh","-c","printf hi; printf oh >&2; exit 5"]}` + "\n", "hi", "oh", oldFrame{ExitCode: 5}},
		{"all members", `{"command":["sh","-c","echo $PWD $A"],"dir":"/tmp","env":["A=b"],"entropy_seed":"c2VlZA==","tty":false}` + "\n", "/tmp b\n", "", oldFrame{}},
		{"stdin", `{"command":["cat"]}` + "\n" + frame("stdin", "one ") + frame("stdin", "two") + eof, "one two", "", oldFrame{}},
		{"plain stdin", `{"command":["cat"]}` + "\n" + `{"type":"stdin","data":"not base64!"}` + "\n" + eof, "not base64!", "", oldFrame{}},
		{"unknown frame", `{"command":["cat"]}` + "\n" + `{"type":"heartbeat"}` + "\n" + frame("stdin", "x") + eof, "x", "", oldFrame{}},
		{"unknown member", `{"command":["true"],"start_docker_service":true,"closed_env":["A=b"]}` + "\n", "", "", oldFrame{}},
		{"blank line first", "\n" + `{"command":["true"]}` + "\n", "", "", oldFrame{}},
		{"no program", `{"command":["/no"]}` + "\n", "", "fork/exec /no: no such file or directory\n", oldFrame{ExitCode: 1, Error: "fork/exec /no: no such file or directory"}},
		{"no command", `{"command":[]}` + "\n", "", "missing command\n", oldFrame{ExitCode: 1, Error: "missing command"}},
		{"blank command", `{"command":[" "]}` + "\n", "", "missing command executable\n", oldFrame{ExitCode: 1, Error: "missing command executable"}},
		{"bad directory", `{"command":["true"],"dir":"/nope"}` + "\n", "", "chdir /nope: no such file or directory\n", oldFrame{ExitCode: 1, Error: "chdir /nope: no such file or directory"}},
		{"killed", `{"command":["sh","-c","kill -9 $$"]}` + "\n", "", "", oldFrame{ExitCode: -1, Error: "signal: killed"}},
		{"terminal", `{"command":["sh","-c","stty size; read x; stty size; echo $x"],"tty":true}` + "\n" +
			`{"type":"resize","cols":120,"rows":40}` + "\n" + frame("stdin", "go\n"), "", "", oldFrame{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			conn := dial(t, s, wire.PortExec)
			if _, err := io.WriteString(conn, tt.send); err != nil {
				t.Fatal(err)
			}
			var stdout, stderr []byte
			r := bufio.NewReader(conn)
			var f oldFrame
			for f.Type != "exit" {
				line, err := r.ReadBytes('\n')
				if err != nil {
					t.Fatalf("got %q, %v before the exit", line, err)
				}
				d := json.NewDecoder(bytes.NewReader(line))
				d.DisallowUnknownFields()
				f = oldFrame{}
				if err := d.Decode(&f); err != nil {
					t.Fatalf("%s: an old host does not know this: %v", line, err)
				}
				data, err := base64.StdEncoding.DecodeString(f.Data)
				switch {
				case err != nil:
					t.Fatal(err)
				case f.Type == "stdout":
					stdout = append(stdout, data...)
				case f.Type == "stderr":
					stderr = append(stderr, data...)
				case f.Type != "exit":
					t.Fatalf("unknown stream frame type %q", f.Type)
				}
			}
			if line, err := r.ReadBytes('\n'); !errors.Is(err, io.EOF) {
				t.Errorf("after the exit: got %q, %v, want the end", line, err)
			}
			f.Type = ""
			if f != tt.exit {
				t.Errorf("exit: got %+v, want %+v", f, tt.exit)
			}
			if tt.name == "terminal" {
				if got := string(stdout); !strings.Contains(got, "40 120") || !strings.HasSuffix(got, "go\r\n") {
					t.Errorf("got %q", got)
				}
				return
			}
			if string(stdout) != tt.stdout || string(stderr) != tt.stderr {
				t.Errorf("got %q and %q, want %q and %q", stdout, stderr, tt.stdout, tt.stderr)
			}
		})
	}
}

// A host of seed 000 or 001 that goes away ends its command (2.11, defect 1), and
// one that stays idle holds up nobody.
func TestOldHostsBesideNew(t *testing.T) {
	s := box(t, bouvet.Config{})
	_ = dial(t, s, wire.PortRPC) // idle
	_ = dial(t, s, wire.PortExec)
	conn := dial(t, s, wire.PortRPC)
	if _, err := io.WriteString(conn, `{"jsonrpc":"2.0","id":1,"method":"exec","params":{"cmd":"sleep 4711"}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	sleeping := func(want string) func() bool {
		return func() bool { return sh(t, s, "pgrep -x sleep | wc -l") == want }
	}
	eventually(t, "the command runs", sleeping("1"))
	answers(t, s)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is gone with its host", sleeping("0"))
}

// An agent of seed 002: it knows six methods and has no exec port.
func TestOldRPCAgent(t *testing.T) {
	const agent = `
< "method":"ping"
> {"jsonrpc":"2.0","id":1,"result":{"pong":true}}
< "id":2,"method":"exec","params":\{"cmd":"ls"\}
> {"jsonrpc":"2.0","id":2,"result":{"exit_code":0,"stdout":"a\\n","stderr":""}}
< "id":3,"method":"exec_code","params":\{"lang":"python","code":"1"\}
> {"jsonrpc":"2.0","id":3,"result":{"exit_code":1,"stdout":"","stderr":"no"},"error":null}
< "id":4,"method":"read_file","params":\{"path":"/x"\}
> {"jsonrpc":"2.0","id":4,"result":{"content":"x"}}
< "id":5,"method":"write_file","params":\{"path":"/x","content":"y"\}
> {"jsonrpc":"2.0","id":5,"result":{"success":true}}
< "id":6,"method":"list_dir","params":\{"path":"/"\}
> {"jsonrpc":"2.0","id":6,"result":{"entries":[{"name":"x","is_dir":false,"size":1}]}}
< "id":7,"method":"read_file"
> {"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"failed to stat '/no': No such file or directory (os error 2)","data":null}}
< "id":8,"method":"info"
> {"jsonrpc":"2.0","id":8,"error":{"code":-32601,"message":"method not found: info"}}
< "id":9,"method":"stat"
> {"jsonrpc":"2.0","id":9,"error":{"code":-32601,"message":"method not found: stat"}}
eof
`
	c, err := bouvet.Connect(timed(t), wiretest.NewPeer(t, agent), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx := timed(t)
	if r, err := c.Exec(ctx, "ls", nil); err != nil || r.Stdout != "a\n" {
		t.Errorf("exec: got %+v, %v", r, err)
	}
	if r, err := c.ExecCode(ctx, "python", "1", nil); err != nil || r.ExitCode != 1 {
		t.Errorf("exec_code: got %+v, %v", r, err)
	}
	if got, err := c.ReadFile(ctx, "/x"); err != nil || got != "x" {
		t.Errorf("read_file: got %q, %v", got, err)
	}
	if err := c.WriteFile(ctx, "/x", "y"); err != nil {
		t.Errorf("write_file: %v", err)
	}
	if got, err := c.ListDir(ctx, "/"); err != nil || len(got) != 1 {
		t.Errorf("list_dir: got %+v, %v", got, err)
	}
	var rpc *bouvet.RPCError
	if _, err := c.ReadFile(ctx, "/no"); !errors.As(err, &rpc) || rpc.Code != -32603 {
		t.Errorf("read_file: got %v, want -32603", err)
	}
	if i, err := c.Info(ctx); err != nil || len(i.Capabilities) > 0 {
		t.Errorf("info: got %+v, %v, want none", i, err)
	}
	if _, err := c.Stat(ctx, "/x"); !errors.Is(err, bouvet.ErrUnsupported) {
		t.Errorf("stat: got %v, want ErrUnsupported", err)
	}
}

// An agent of seed 001, in all the ways that its versions answer.
func TestOldExecAgent(t *testing.T) {
	for _, tt := range []struct {
		name, script   string
		stdout, stderr string
		code           int
		message        string
	}{
		{"golden true", "> {\"type\":\"exit\"}", "", "", 0, ""},
		{"golden output", "> {\"type\":\"stdout\",\"data\":\"aGk=\"}\n> {\"type\":\"exit\",\"exit_code\":5}", "hi", "", 5, ""},
		{"plain text", "> {\"type\":\"stdout\",\"data\":\"hi there!\"}\n> {\"type\":\"exit\"}", "hi there!", "", 0, ""},
		{"type in other case", "> {\"type\":\" STDOUT \",\"data\":\"aGk=\"}\n> {\"type\":\"Exit\"}", "hi", "", 0, ""},
		{"untyped refusal", "> {\"exit_code\":1,\"error\":\"fork/exec /no: no such file or directory\"}", "", "", 1, "fork/exec /no: no such file or directory"},
		{"untyped reply", "> {\"exit_code\":2,\"stdout\":\"out\",\"stderr\":\"err\"}", "out", "err", 2, ""},
		{"typed refusal", "> {\"type\":\"stderr\",\"data\":\"bm8K\"}\n> {\"type\":\"exit\",\"exit_code\":1,\"error\":\"no\"}", "", "no\n", 1, "no"},
		{"later members", "> {\"type\":\"exit\",\"exit_code\":0,\"overlay_capture\":{\"entries\":[]},\"guest_timing_ms\":{\"guest_agent_start\":3}}", "", "", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// It understands no extension, so it may be sent none.
			peer := wiretest.NewPeer(t, "close", `
< ^\{"command":\["ls"\],"env":\["A=b"\]\}$
< ^\{"type":"eof"\}$
`+tt.script)
			c, err := bouvet.Connect(timed(t), peer, &bouvet.ClientOptions{ExecOnly: true, RPCTimeout: 10 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			cmd := c.Command(timed(t), "ls")
			cmd.Env = []string{"A=b"}
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err = cmd.Run()
			exit, failed := errors.AsType[*bouvet.ExitError](err)
			if !failed {
				exit = &bouvet.ExitError{}
			}
			if (err != nil && !failed) || exit.Code != tt.code || exit.Message != tt.message {
				t.Errorf("got %v, want exit %d %q", err, tt.code, tt.message)
			}
			if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got %q and %q, want %q and %q", &stdout, &stderr, tt.stdout, tt.stderr)
			}
		})
	}
}

// What an old exec agent cannot do is refused before anything is sent.
func TestOldExecAgentLacks(t *testing.T) {
	c, err := bouvet.Connect(timed(t), wiretest.NewPeer(t, "close"), &bouvet.ClientOptions{ExecOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for name, change := range map[string]func(*bouvet.Cmd){
		"user":   func(c *bouvet.Cmd) { c.User = "user" },
		"detach": func(c *bouvet.Cmd) { c.Detach = true },
	} {
		cmd := c.Command(timed(t), "true")
		change(cmd)
		if err := cmd.Run(); !errors.Is(err, bouvet.ErrUnsupported) {
			t.Errorf("%s: got %v, want ErrUnsupported", name, err)
		}
	}
}
