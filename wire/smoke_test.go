package wire

import "testing"

func TestSmoke(t *testing.T) {
	r, e := DecodeRequest([]byte(`{"jsonrpc":"2.0","id":18446744073709551615,"METHOD":"x","method":"ping","params":{"a":[1,{"b":"}"}]}}`))
	t.Log(r.ID, r.Method, string(r.Params), e)
	_, e = DecodeRequest([]byte(`{"jsonrpc":"2.0","id":7,"method":"ping","method":"b"}`))
	t.Log(e)
	r, e = DecodeRequest([]byte(`{"jsonrpc":"2.0","id":7,"method":5}`))
	t.Log(r.ID, e)
	var p ExecParams
	t.Log(Decode([]byte(`{"cmd":"x","timeout_ms":5,"env":["a=b"]}`), &p), p)
	f, l, err := DecodeStream([]byte(`{"type":" Stdout","data":"not base64!"}`))
	t.Log(f, string(f.Data), l, err)
	b, err := AppendLine(nil, StreamFrame{Type: "exit"})
	t.Log(string(b), err)
	var ld ListDirResult
	t.Log(Decode([]byte(`{"entries":[{"name":"a","size":3},{"name":"b","is_dir":true}]}`), &ld), ld)
}
