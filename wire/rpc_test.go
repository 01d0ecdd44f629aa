package wire_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bouvet-run/bouvet/wire"
)

func TestDecodeRequest(t *testing.T) {
	raw := func(s string) json.RawMessage { return json.RawMessage(s) }
	for _, tc := range []struct {
		name, in string
		id       uint64
		method   string
		params   json.RawMessage
	}{
		{"B2 the seed's example", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`, 1, "ping", raw(`{}`)},
		{"B3 params absent", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, 1, "ping", nil},
		{"B3 L9 params null", `{"jsonrpc":"2.0","id":1,"method":"ping","params":null}`, 1, "ping", raw(`null`)},
		{"B3 params array", `{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}`, 1, "ping", raw(`[]`)},
		{"B2 id 0", `{"jsonrpc":"2.0","id":0,"method":"ping"}`, 0, "ping", nil},
		{"B2 id of 2^64-1", `{"jsonrpc":"2.0","id":18446744073709551615,"method":"ping"}`, math.MaxUint64, "ping", nil},
		{"B2 id beyond 2^53", `{"jsonrpc":"2.0","id":9007199254740993,"method":"ping"}`, 9007199254740993, "ping", nil},
		{"any order, white space, CR, unknown keys", ` {"method" : "exec","x":[1],"params":{"cmd":"}"},"id":7,"jsonrpc":"2.0"}` + "\r", 7, "exec", raw(`{"cmd":"}"}`)},
		{"T17 METHOD does not shadow method", `{"METHOD":"exec","jsonrpc":"2.0","id":1,"method":"ping","Method":"exec","ID":2,"Params":{"cmd":"x"}}`, 1, "ping", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, rerr := wire.DecodeRequest([]byte(tc.in))
			if rerr != nil {
				t.Fatal(rerr)
			}
			want := wire.Request{JSONRPC: "2.0", ID: tc.id, Method: tc.method, Params: tc.params}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		id       uint64
		code     int32
		want     string
	}{
		{"C6 not JSON", `not json`, 0, wire.CodeParse, "parse error: "},
		{"C6 cut off", `{"jsonrpc":"2.0","id":5,"method":"pi`, 0, wire.CodeParse, "parse error: "},
		{"C6 two on a line", `{"jsonrpc":"2.0","id":5,"method":"ping"}{"jsonrpc":"2.0","id":6,"method":"ping"}`, 0, wire.CodeParse, "parse error: "},
		{"T17 invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"\xff\"}", 0, wire.CodeParse, "not valid UTF-8"},
		{"T17 nesting", `{"jsonrpc":"2.0","id":5,"method":"ping","params":` + strings.Repeat("[", 10000) + strings.Repeat("]", 10000) + "}", 0, wire.CodeParse, "nested deeper"},
		{"L10 no version", `{"id":5,"method":"ping"}`, 5, wire.CodeInvalidRequest, `jsonrpc must be "2.0"`},
		{"L10 wrong version", `{"jsonrpc":"1.0","id":5,"method":"ping"}`, 5, wire.CodeInvalidRequest, `jsonrpc must be "2.0"`},
		{"L10 version as number", `{"jsonrpc":2.0,"id":5,"method":"ping"}`, 5, wire.CodeInvalidRequest, "jsonrpc: number 2.0"},
		{"L10 version null", `{"jsonrpc":null,"id":5,"method":"ping"}`, 5, wire.CodeInvalidRequest, `jsonrpc must be "2.0"`},
		{"L10 no method", `{"jsonrpc":"2.0","id":5}`, 5, wire.CodeInvalidRequest, "missing method"},
		{"L10 empty method", `{"jsonrpc":"2.0","id":5,"method":""}`, 5, wire.CodeInvalidRequest, "missing method"},
		{"T17 METHOD alone", `{"jsonrpc":"2.0","id":5,"METHOD":"ping"}`, 5, wire.CodeInvalidRequest, "missing method"},
		{"method of another type", `{"jsonrpc":"2.0","id":5,"method":["ping"]}`, 5, wire.CodeInvalidRequest, "method: array"},
		{"B2 no id", `{"jsonrpc":"2.0","method":"ping"}`, 0, wire.CodeInvalidRequest, "missing id"},
		{"B2 id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, 0, wire.CodeInvalidRequest, "missing id"},
		{"T19 id string", `{"jsonrpc":"2.0","id":"5","method":"ping"}`, 0, wire.CodeInvalidRequest, "id: string"},
		{"T19 id -1", `{"jsonrpc":"2.0","id":-1,"method":"ping"}`, 0, wire.CodeInvalidRequest, "id: number -1"},
		{"T19 id 1.0", `{"jsonrpc":"2.0","id":1.0,"method":"ping"}`, 0, wire.CodeInvalidRequest, "id: number 1.0"},
		{"T19 id 2^64", `{"jsonrpc":"2.0","id":18446744073709551616,"method":"ping"}`, 0, wire.CodeInvalidRequest, "id: number 18446744073709551616"},
		{"T19 id 1e400", `{"jsonrpc":"2.0","id":1e400,"method":"ping"}`, 0, wire.CodeInvalidRequest, "id: number 1e400"},
		{"T17 method twice", `{"jsonrpc":"2.0","id":5,"method":"ping","method":"exec"}`, 5, wire.CodeInvalidRequest, "given twice"},
		{"T17 id twice", `{"jsonrpc":"2.0","id":5,"method":"ping","id":6}`, 0, wire.CodeInvalidRequest, "given twice"},
		{"T17 id twice, once bad", `{"jsonrpc":"2.0","id":5,"method":"ping","id":"x"}`, 0, wire.CodeInvalidRequest, "given twice"},
		{"T17 key twice in params", `{"jsonrpc":"2.0","id":5,"method":"exec","params":{"cmd":"a","cmd":"b"}}`, 5, wire.CodeInvalidRequest, "given twice"},
		{"batch", `[{"jsonrpc":"2.0","id":5,"method":"ping"}]`, 0, wire.CodeInvalidRequest, "array where object is wanted"},
		{"scalar", `5`, 0, wire.CodeInvalidRequest, "number 5 where object is wanted"},
		{"null", `null`, 0, wire.CodeInvalidRequest, `jsonrpc must be "2.0"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, rerr := wire.DecodeRequest([]byte(tc.in))
			if rerr == nil {
				t.Fatalf("got %+v, want an error", got)
			}
			if rerr.Code != tc.code || !strings.Contains(rerr.Message, tc.want) || got.ID != tc.id {
				t.Errorf("got id %d, %d %q, want id %d, %d %q", got.ID, rerr.Code, rerr.Message, tc.id, tc.code, tc.want)
			}
			// B4: what goes back is a whole response.
			line, err := wire.AppendLine(nil, wire.Response{JSONRPC: wire.Version, ID: got.ID, Error: rerr})
			if err != nil {
				t.Fatal(err)
			}
			if back, err := wire.DecodeResponse(line); err != nil || back.ID != tc.id || cmp.Diff(rerr, back.Error) != "" {
				t.Errorf("read back: %+v, %v", back, err)
			}
		})
	}
}

func TestDecodeParams(t *testing.T) {
	for _, tc := range []struct{ name, in, want, err string }{
		{"B3 absent", ``, "", ""},
		{"B3 null", `null`, "", ""},
		{"B3 empty object", `{}`, "", ""},
		{"B3 empty array", ` [ ] `, "", ""},
		{"named", `{"cmd":"ls"}`, "ls", ""},
		{"by position", `["ls"]`, "", "parameters must be named"},
		{"C9 wrong type", `{"cmd":1}`, "", "cmd: number 1 where string is wanted"},
		{"C9 scalar", `"ls"`, "", "string where object is wanted"},
		{"T17 case variant", `{"CMD":"ls"}`, "", ""},
		{"T17 twice", `{"cmd":"a","cmd":"b"}`, "", "given twice"},
		{"broken array", `[1`, "", "unexpected end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var p wire.ExecParams
			err := wire.DecodeParams(json.RawMessage(tc.in), &p)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("got %v, want %q", err, tc.err)
			}
			if p.Cmd != tc.want {
				t.Errorf("got %q, want %q", p.Cmd, tc.want)
			}
		})
	}
}

func TestDecodeResponse(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     wire.Response
	}{
		{"B4 result", `{"jsonrpc":"2.0","id":1,"result":{"pong":true}}`, wire.Response{ID: 1, Result: json.RawMessage(`{"pong":true}`)}},
		{"B4 result and error null", `{"jsonrpc":"2.0","id":1,"result":{},"error":null}`, wire.Response{ID: 1, Result: json.RawMessage(`{}`)}},
		{"B5 error without data", `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"method not found: unknown"}}`, wire.Response{ID: 7, Error: &wire.RPCError{Code: -32601, Message: "method not found: unknown"}}},
		{"B5 L9 error with data null", `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"m","data":null}}`, wire.Response{ID: 1, Error: &wire.RPCError{Code: -32601, Message: "m", Data: json.RawMessage(`null`)}}},
		{"B5 error with data, result null", `{"jsonrpc":"2.0","id":1,"result":null,"error":{"code":1,"message":"m","data":[1]}}`, wire.Response{ID: 1, Error: &wire.RPCError{Code: 1, Message: "m", Data: json.RawMessage(`[1]`)}}},
		{"L10 id null", `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m"}}`, wire.Response{Error: &wire.RPCError{Code: -32700, Message: "m"}}},
		{"L10 id 0", `{"jsonrpc":"2.0","id":0,"error":{"code":-32700,"message":"m"}}`, wire.Response{Error: &wire.RPCError{Code: -32700, Message: "m"}}},
		{"id absent", `{"jsonrpc":"2.0","error":{"code":-32700,"message":"m"}}`, wire.Response{Error: &wire.RPCError{Code: -32700, Message: "m"}}},
		{"id of 2^64-1", `{"jsonrpc":"2.0","id":18446744073709551615,"result":{}}`, wire.Response{ID: math.MaxUint64, Result: json.RawMessage(`{}`)}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := wire.DecodeResponse([]byte(tc.in))
			if err != nil {
				t.Fatal(err)
			}
			tc.want.JSONRPC = "2.0"
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestDecodeResponseRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		noResult bool
		want     string
	}{
		{"B8 neither", `{"jsonrpc":"2.0","id":3}`, true, "missing result in response"},
		{"B8 both null", `{"jsonrpc":"2.0","id":3,"result":null,"error":null}`, true, "missing result in response"},
		{"T17 RESULT", `{"jsonrpc":"2.0","id":3,"RESULT":{}}`, true, "missing result in response"},
		{"B4 both", `{"jsonrpc":"2.0","id":3,"result":{},"error":{"code":1,"message":"m"}}`, false, "both a result and an error"},
		{"T19 a request", `{"jsonrpc":"2.0","id":3,"method":"exec","params":{"cmd":"id"}}`, false, "a request where a response is wanted"},
		{"T19 a request with a result", `{"jsonrpc":"2.0","id":3,"method":"exec","result":{}}`, false, "a request where a response is wanted"},
		{"wrong version", `{"jsonrpc":"3.0","id":3,"result":{}}`, false, `response has jsonrpc "3.0", want "2.0"`},
		{"no version", `{"id":3,"result":{}}`, false, `response has jsonrpc ""`},
		{"T19 id string", `{"jsonrpc":"2.0","id":"3","result":{}}`, false, "id: string"},
		{"T19 id 3.0", `{"jsonrpc":"2.0","id":3.0,"result":{}}`, false, "id: number 3.0"},
		{"T19 id -3", `{"jsonrpc":"2.0","id":-3,"result":{}}`, false, "id: number -3"},
		{"T19 id twice", `{"jsonrpc":"2.0","id":3,"id":4,"result":{}}`, false, "given twice"},
		{"T21 code beyond i32", `{"jsonrpc":"2.0","id":3,"error":{"code":2147483648,"message":"m"}}`, false, "error: code: number 2147483648"},
		{"error as string", `{"jsonrpc":"2.0","id":3,"error":"boom"}`, false, "error: string"},
		{"array", `[{"jsonrpc":"2.0","id":3,"result":{}}]`, false, "array where object"},
		{"garbage", "\x00\x01", false, "invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := wire.DecodeResponse([]byte(tc.in))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %+v, %v, want %q", got, err, tc.want)
			}
			if errors.Is(err, wire.ErrNoResult) != tc.noResult {
				t.Errorf("is ErrNoResult: got %v, want %v", !tc.noResult, tc.noResult)
			}
			if tc.noResult && got.ID != 3 {
				t.Errorf("got id %d, want 3", got.ID)
			}
		})
	}
}

func TestRPCShapes(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    any
		want string
	}{
		{"B1 B2 request", wire.Request{JSONRPC: wire.Version, ID: 1, Method: wire.MethodPing, Params: json.RawMessage(`{}`)}, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`},
		{"B4 result", wire.Response{JSONRPC: wire.Version, ID: 1, Result: json.RawMessage(`{"pong":true}`)}, `{"jsonrpc":"2.0","id":1,"result":{"pong":true}}`},
		{"B5 L9 error omits data", wire.Response{JSONRPC: wire.Version, ID: 7, Error: &wire.RPCError{Code: wire.CodeMethodNotFound, Message: "m"}}, `{"jsonrpc":"2.0","id":7,"error":{"code":-32601,"message":"m"}}`},
		{"D7 exec result", wire.ExecResult{}, `{"exit_code":0,"stdout":"","stderr":""}`},
		{"D11 entry", wire.ListDirResult{Entries: []wire.FileEntry{{Name: "a"}}}, `{"entries":[{"name":"a","is_dir":false,"size":0}]}`},
		{"exec without extensions", wire.ExecParams{Cmd: "ls"}, `{"cmd":"ls"}`},
		{"exec with", wire.ExecParams{Cmd: "ls", ExecOptions: wire.ExecOptions{Dir: "/", TimeoutMS: 5}}, `{"cmd":"ls","dir":"/","timeout_ms":5}`},
	} {
		got, err := wire.AppendLine(nil, tc.v)
		if err != nil || string(got) != tc.want+"\n" {
			t.Errorf("%s: got %s, %v, want %s", tc.name, got, err, tc.want)
		}
	}
	if got := (&wire.RPCError{Code: -1, Message: "late"}).Error(); got != "rpc error -1: late" {
		t.Errorf("got %q", got)
	}
	if r := (wire.ExecResult{}); !r.Success() {
		t.Error("exit code 0 is no success")
	}
	if r := (wire.ExecResult{ExitCode: -1}); r.Success() {
		t.Error("exit code -1 is a success")
	}
	info := wire.Info{Capabilities: []string{wire.CapFiles}}
	if !info.Has(wire.CapFiles) || info.Has(wire.CapWatch) {
		t.Error("Has does not tell the capabilities apart")
	}
}
