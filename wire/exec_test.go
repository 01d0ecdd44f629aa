package wire_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bouvet-run/bouvet/wire"
)

func TestDecodeStream(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		frame    wire.StreamFrame
		legacy   *wire.LegacyResponse
	}{
		{"J6 stdout", `{"type":"stdout","data":"aGk="}`, wire.StreamFrame{Type: "stdout", Data: wire.Data("hi")}, nil},
		{"J6 stderr", `{"type":"stderr","data":"aGk="}`, wire.StreamFrame{Type: "stderr", Data: wire.Data("hi")}, nil},
		{"J6 other spelling", ` {"data" : "aGk=", "type":"stdout","x":1}`, wire.StreamFrame{Type: "stdout", Data: wire.Data("hi")}, nil},
		{"2.9 empty chunk", `{"type":"stdout"}`, wire.StreamFrame{Type: "stdout"}, nil},
		{"J7 plain string", `{"type":"stdout","data":"plain, not base64"}`, wire.StreamFrame{Type: "stdout", Data: wire.Data("plain, not base64")}, nil},
		{"J7 plain string with escapes", `{"type":"stderr","data":"a\nb\u0000"}`, wire.StreamFrame{Type: "stderr", Data: wire.Data("a\nb\x00")}, nil},
		{"J6 exit", `{"type":"exit","exit_code":5,"error":"e"}`, wire.StreamFrame{Type: "exit", ExitCode: 5, Error: "e"}, nil},
		{"L17 exit without code", `{"type":"exit"}`, wire.StreamFrame{Type: "exit"}, nil},
		{"exit code -1", `{"type":"exit","exit_code":-1}`, wire.StreamFrame{Type: "exit", ExitCode: -1}, nil},
		{"2.9 type trimmed and lower-cased", `{"type":" STDOUT\t","data":"aGk="}`, wire.StreamFrame{Type: "stdout", Data: wire.Data("hi")}, nil},
		{"extension started", `{"type":"started","pid":7,"id":"a","offset":9}`, wire.StreamFrame{Type: "started", PID: 7, ID: "a", Offset: 9}, nil},
		{"extension exit", `{"type":"exit","exit_code":-1,"error":"e","signal":9,"timed_out":true,"oom_killed":true}`, wire.StreamFrame{Type: "exit", ExitCode: -1, Error: "e", Signal: 9, TimedOut: true, OOMKilled: true}, nil},
		{"unknown type is the caller's matter", `{"type":"heartbeat"}`, wire.StreamFrame{Type: "heartbeat"}, nil},
		{"a stdin frame is none of ours", `{"type":"stdin","data":"aGk="}`, wire.StreamFrame{Type: "stdin", Data: wire.Data("hi")}, nil},
		{"J8 L18 legacy", `{"exit_code":0,"stdout":"hello\n","stderr":"","error":""}`, wire.StreamFrame{}, &wire.LegacyResponse{Stdout: "hello\n"}},
		{"2.10 golden spawn failure", `{"exit_code":1,"error":"fork/exec /no: no such file or directory"}`, wire.StreamFrame{}, &wire.LegacyResponse{ExitCode: 1, Error: "fork/exec /no: no such file or directory"}},
		{"J8 type null", `{"type":null,"exit_code":2}`, wire.StreamFrame{}, &wire.LegacyResponse{ExitCode: 2}},
		{"J8 type blank", `{"type":" ","exit_code":2}`, wire.StreamFrame{}, &wire.LegacyResponse{ExitCode: 2}},
		{"T17 TYPE is no type", `{"TYPE":"stdout","exit_code":2}`, wire.StreamFrame{}, &wire.LegacyResponse{ExitCode: 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			frame, legacy, err := wire.DecodeStream([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.frame, frame); d != "" {
				t.Errorf("frame -want +got:\n%s", d)
			}
			if d := cmp.Diff(tc.legacy, legacy); d != "" {
				t.Errorf("legacy -want +got:\n%s", d)
			}
		})
	}
}

func TestDecodeStreamRefuses(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"garbage", `stdout`, "invalid character"},
		{"neither type nor exit code", `{}`, "neither a type nor an exit code"},
		{"a response of the other protocol", `{"jsonrpc":"2.0","result":{}}`, "neither a type nor an exit code"},
		{"type of another type", `{"type":1}`, "type: number 1"},
		{"data of another type", `{"type":"stdout","data":["aGk="]}`, "data: array where string is wanted"},
		{"T21 exit 2^31", `{"type":"exit","exit_code":2147483648}`, "exit_code: number 2147483648"},
		{"T21 legacy exit 2^31", `{"exit_code":2147483648}`, "exit_code: number 2147483648"},
		{"T21 negative offset", `{"type":"started","offset":-1}`, "offset: number -1"},
		{"T17 type twice", `{"type":"stdout","data":"aGk=","type":"exit"}`, "given twice"},
		{"T17 raw newline in plain frame", "{\"type\":\"stdout\",\"data\":\"aG\nk=\"}", "invalid character"},
		{"T17 raw return in plain frame", "{\"type\":\"stdout\",\"data\":\"aG\rk=\"}", "invalid character"},
		{"T17 invalid UTF-8 in plain frame", "{\"type\":\"stdout\",\"data\":\"\xff\"}", "UTF-8"},
		{"T17 two frames", `{"type":"stdout","data":"aGk="}{"type":"stdout","data":"aGk="}`, "after top-level value"},
		{"cut off", `{"type":"stdout","data":"aGk=`, "unexpected end"},
		{"cut off before the end", `{"type":"stdout","data":"aGk="`, "unexpected end"},
	} {
		if f, l, err := wire.DecodeStream([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %+v, %+v, %v, want %q", tc.name, f, l, err, tc.want)
		}
	}
}

func TestDecodeInput(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     wire.InputFrame
		err      string
	}{
		{"J5 stdin", `{"type":"stdin","data":"aGk="}`, wire.InputFrame{Type: "stdin", Data: wire.Data("hi")}, ""},
		{"J5 empty stdin", `{"type":"stdin","data":""}`, wire.InputFrame{Type: "stdin", Data: wire.Data{}}, ""},
		{"L19 plain string", `{"type":"stdin","data":"plain text"}`, wire.InputFrame{Type: "stdin", Data: wire.Data("plain text")}, ""},
		{"J5 resize", `{"type":"resize","cols":120,"rows":40}`, wire.InputFrame{Type: "resize", Cols: 120, Rows: 40}, ""},
		{"J5 eof", `{"type":"eof"}`, wire.InputFrame{Type: "eof"}, ""},
		{"extension signal", `{"type":"signal","signal":15}`, wire.InputFrame{Type: "signal", Signal: 15}, ""},
		{"unknown type is the caller's matter", `{"type":"x"}`, wire.InputFrame{Type: "x"}, ""},
		{"type trimmed and lower-cased", `{"type":" EOF "}`, wire.InputFrame{Type: "eof"}, ""},
		{"2.10 resize beyond 16 bits", `{"type":"resize","cols":65537,"rows":40}`, wire.InputFrame{}, "cols: number 65537"},
		{"resize below 0", `{"type":"resize","cols":-1,"rows":40}`, wire.InputFrame{}, "cols: number -1"},
		{"not JSON", `hello`, wire.InputFrame{}, "invalid character"},
		{"data of another type", `{"type":"stdin","data":{}}`, wire.InputFrame{}, "data: object"},
	} {
		got, err := wire.DecodeInput([]byte(tc.in))
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.err)
		}
		if got.Type != tc.want.Type || !bytes.Equal(got.Data, tc.want.Data) || got.Cols != tc.want.Cols || got.Rows != tc.want.Rows || got.Signal != tc.want.Signal {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestDecodeExecRequest(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     wire.ExecRequest
	}{
		{
			"J2 the seed's example", `{"command":["sh","-c","echo hello"],"dir":"/workspace","env":["FOO=bar"],"entropy_seed":"AQID","tty":true}`,
			wire.ExecRequest{Command: []string{"sh", "-c", "echo hello"}, Dir: "/workspace", Env: []string{"FOO=bar"}, EntropySeed: []byte{1, 2, 3}, TTY: true},
		},
		{"J2 least", `{"command":["true"]}`, wire.ExecRequest{Command: []string{"true"}}},
		{"J2 arguments are not trimmed", `{"command":[" true "," a "]}`, wire.ExecRequest{Command: []string{" true ", " a "}}},
		{"2.9 fields of other versions", `{"command":["true"],"closed_env":true,"cache_output_mounts":["x"],"input_projection":{"files":[{"a":1}]}}`, wire.ExecRequest{Command: []string{"true"}}},
		{
			"extensions", `{"command":["a"],"user":"u","timeout_ms":5,"no_stdin":true,"cols":1,"rows":2,"started":true,"framing":"binary","detach":true,"id":"job-1.a_B"}`,
			wire.ExecRequest{Command: []string{"a"}, User: "u", TimeoutMS: 5, NoStdin: true, Cols: 1, Rows: 2, Started: true, Framing: wire.FramingBinary, Detach: true, ID: "job-1.a_B"},
		},
		{"attach", `{"attach":"job","replay_from":0}`, wire.ExecRequest{Attach: "job", ReplayFrom: new(uint64(0))}},
	} {
		got, err := wire.DecodeExecRequest([]byte(tc.in))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		if d := cmp.Diff(tc.want, got); d != "" {
			t.Errorf("%s: -want +got:\n%s", tc.name, d)
		}
	}
}

func TestDecodeExecRequestRefuses(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"2.10 bad JSON", `not json`, "invalid character 'o' in literal null (expecting 'u')"},
		{"2.10 no command", `{}`, "missing command"},
		{"2.10 empty command", `{"command":[]}`, "missing command"},
		{"T17 COMMAND", `{"COMMAND":["true"]}`, "missing command"},
		{"2.10 blank command", `{"command":[" \t"]}`, "missing command executable"},
		{"command as string", `{"command":"true"}`, "command: string where array is wanted"},
		{"seed not in base64", `{"command":["true"],"entropy_seed":"?"}`, "entropy_seed: illegal base64"},
		{"NUL in command", `{"command":["a\u0000b"]}`, "NUL"},
		{"NUL in env", `{"command":["a"],"env":["A=\u0000"]}`, "NUL"},
		{"NUL in dir", `{"command":["a"],"dir":"/\u0000"}`, "NUL"},
		{"NUL in user", `{"command":["a"],"user":"\u0000"}`, "NUL"},
		{"attach and command", `{"attach":"a","command":["a"]}`, "attach takes no command"},
		{"unknown framing", `{"command":["a"],"framing":"protobuf"}`, `framing "protobuf" is not known`},
		{"id with a slash", `{"command":["a"],"id":"a/b"}`, "an id has 1 to 64 characters"},
		{"id too long", `{"command":["a"],"id":"` + strings.Repeat("x", 65) + `"}`, "an id has 1 to 64 characters"},
		{"attach id", `{"attach":"a b"}`, "an id has 1 to 64 characters"},
		{"negative timeout", `{"command":["a"],"timeout_ms":-1}`, "timeout_ms: number -1"},
	} {
		if got, err := wire.DecodeExecRequest([]byte(tc.in)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %+v, %v, want %q", tc.name, got, err, tc.want)
		}
	}
}

func TestExecShapes(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    any
		want string
	}{
		{"J2 request without extensions", wire.ExecRequest{Command: []string{"true"}}, `{"command":["true"]}`},
		{"L17 exit spells out zeros", wire.StreamFrame{Type: wire.FrameTypeExit}, `{"type":"exit","exit_code":0,"error":""}`},
		{"exit with extensions", wire.StreamFrame{Type: wire.FrameTypeExit, ExitCode: -1, Error: "e", Signal: 9, TimedOut: true, OOMKilled: true}, `{"type":"exit","exit_code":-1,"error":"e","signal":9,"timed_out":true,"oom_killed":true}`},
		{"J6 stdout", wire.StreamFrame{Type: wire.FrameTypeStdout, Data: wire.Data("hi")}, `{"type":"stdout","data":"aGk="}`},
		{"J5 eof", wire.InputFrame{Type: wire.FrameTypeEOF}, `{"type":"eof"}`},
		{"J5 resize", wire.InputFrame{Type: wire.FrameTypeResize, Cols: 120, Rows: 40}, `{"type":"resize","cols":120,"rows":40}`},
	} {
		got, err := wire.AppendLine(nil, tc.v)
		if err != nil || string(got) != tc.want+"\n" {
			t.Errorf("%s: got %s, %v, want %s", tc.name, got, err, tc.want)
		}
	}
}

// AppendDataFrame writes what encoding/json would.
func TestAppendDataFrame(t *testing.T) {
	for _, n := range []int{1, 2, 3, 4, 100, wire.ChunkSize} {
		data := bytes.Repeat([]byte{0xfb, 0xff, 0, 'a', '\n'}, n)[:n]
		for _, typ := range []string{wire.FrameTypeStdin, wire.FrameTypeStdout, wire.FrameTypeStderr} {
			want, err := json.Marshal(wire.InputFrame{Type: typ, Data: data})
			if err != nil {
				t.Fatal(err)
			}
			got := wire.AppendDataFrame([]byte("x"), typ, data)
			if string(got) != "x"+string(want)+"\n" {
				t.Errorf("%s of %d bytes: got %.100s, want %.100s", typ, n, got, want)
			}
		}
	}
}

func TestValidID(t *testing.T) {
	for id, want := range map[string]bool{
		"a": true, "Z9": true, "..": true, "a.b_c-d": true, strings.Repeat("x", 64): true,
		"": false, strings.Repeat("x", 65): false, "a/b": false, "a b": false, "é": false, "a\x00": false, "@": false, "[": false, "`": false, "{": false,
	} {
		if got := wire.ValidID(id); got != want {
			t.Errorf("%q: got %v, want %v", id, got, want)
		}
	}
}
