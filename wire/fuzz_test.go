package wire_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bouvet-run/bouvet/wire"
)

// seeds are lines of both protocols and what attacks them.
var seeds = []string{
	`{}`, `[]`, `null`, `"a"`, `1e400`, ``, ` `, `{"a":1}{}`,
	`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`,
	`{"jsonrpc":"2.0","id":18446744073709551615,"method":"exec","params":{"cmd":"echo \"hi\"","env":["A=b"],"timeout_ms":5}}`,
	`{"METHOD":"a","method":"b","Method":"c","jsonrpc":"2.0","id":-1}`,
	`{"jsonrpc":"2.0","id":1,"result":{"exit_code":-1,"stdout":"\u00e9\ud83d\ude00","stderr":""}}`,
	`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"parse error","data":null}}`,
	`{"jsonrpc":"2.0","id":1,"result":{"entries":[{"name":"a","is_dir":false,"size":1}]}}`,
	`{"command":["sh","-c","echo"],"dir":"/","env":["A=b"],"entropy_seed":"AAEC","tty":true,"replay_from":3}`,
	`{"attach":"id","framing":"binary"}`,
	`{"type":"stdout","data":"aGk="}`, `{"type":"stderr","data":"aGk"}`, `{"type":"stdin","data":"plain \n text"}`,
	`{"type":"stdout","data":"aGk="} `, `{"type":"stdout","data":"a\/k="}`, "{\"type\":\"stdout\",\"data\":\"aG\rk=\"}",
	`{"type":" EXIT","exit_code":2147483647,"error":"x"}`, `{"exit_code":1,"error":"boom"}`, `{"type":"resize","cols":120,"rows":40}`,
	`{"a":"\ud800","b":"\udc00\ud800"}`, `{"a":{"b":1,"b":2}}`, "{\"\u212a\":1,\"k\":2}", "{\"a\":\"\xff\"}",
	`[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]`,
	`{"k":[0,-0,1.5,1E+9,true,false,null,"",{}]}`, `{"a" : 01}`, `{"a":"\u12"}`, "\ufeff{}",
}

func addSeeds(f *testing.F) {
	for _, s := range seeds {
		f.Add([]byte(s))
	}
}

// FuzzValid compares Valid with encoding/json: it accepts the same texts but for
// what it documents.
func FuzzValid(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		err := wire.Valid(b)
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("error of %d bytes", len(err.Error()))
		}
		known := json.Valid(b) && utf8.Valid(b)
		if err == nil && !known {
			t.Fatalf("accepted %q", b)
		}
		if err != nil && known && !deliberate(err) {
			t.Fatalf("refused %q: %v", b, err)
		}
	})
}

func deliberate(err error) bool {
	for _, text := range []string{"surrogate", "nested deeper", "given twice", "elements", "keys"} {
		if strings.Contains(err.Error(), text) {
			return true
		}
	}
	return false
}

// exactKeys reports whether every key of b that encoding/json would match with a
// field of v, at any level, is written as the field is.
func exactKeys(b []byte, t reflect.Type) bool {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
			var list []json.RawMessage
			if json.Unmarshal(b, &list) != nil {
				return true
			}
			for _, e := range list {
				if !exactKeys(e, t.Elem()) {
					return false
				}
			}
			return true
		}
		if t.Kind() == reflect.Slice {
			return true
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return true
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(b, &object) != nil {
		return true
	}
	for _, field := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Anonymous {
			continue
		}
		for key, value := range object {
			if key != name && strings.EqualFold(key, name) {
				return false
			}
			if key == name && !exactKeys(value, field.Type) {
				return false
			}
		}
	}
	return true
}

// agree fails unless json.Unmarshal reads b as Decode did: what the strict reader
// accepts means the same to every other.
func agree[T any](t *testing.T, b []byte) {
	t.Helper()
	var strict, loose T
	if wire.Decode(b, &strict) != nil || !exactKeys(b, reflect.TypeFor[T]()) {
		return
	}
	if err := json.Unmarshal(b, &loose); err != nil {
		t.Fatalf("%T: json refuses %q: %v", strict, b, err)
	}
	if d := cmp.Diff(loose, strict, cmpopts.EquateEmpty()); d != "" {
		t.Fatalf("%q: -json +wire:\n%s", b, d)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, rerr := wire.DecodeRequest(b)
		agree[wire.Request](t, b)
		agree[wire.ExecParams](t, b)
		agree[wire.WriteFileParams](t, b)
		if rerr == nil {
			again(t, r, func(line []byte) (wire.Request, error) {
				got, rerr := wire.DecodeRequest(line)
				if rerr != nil {
					return got, rerr
				}
				return got, nil
			})
		} else if rerr.Code != wire.CodeParse && rerr.Code != wire.CodeInvalidRequest {
			t.Errorf("code %d", rerr.Code)
		}
	})
}

func FuzzDecodeResponse(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.DecodeResponse(b)
		agree[wire.Response](t, b)
		agree[wire.ExecResult](t, b)
		agree[wire.ListDirResult](t, b)
		agree[wire.FileInfo](t, b)
		if err == nil {
			again(t, r, wire.DecodeResponse)
		}
	})
}

func FuzzDecodeExecRequest(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wire.DecodeExecRequest(b)
		agree[wire.ExecRequest](t, b)
		if err == nil {
			again(t, r, wire.DecodeExecRequest)
		}
	})
}

// again fails unless what was read is read the same after being written.
func again[T any](t *testing.T, v T, decode func([]byte) (T, error)) {
	t.Helper()
	line, err := wire.AppendLine(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(line)
	if err != nil {
		t.Fatalf("cannot read back %q: %v", line, err)
	}
	second, err := wire.AppendLine(nil, got)
	if err != nil || !bytes.Equal(line, second) {
		t.Fatalf("written %q, read back and written %q, %v", line, second, err)
	}
}

// slowData is what a data string stands for, by the library alone.
func slowData(s string) []byte {
	if b, err := base64.StdEncoding.DecodeString(s); err == nil {
		return b
	}
	return []byte(s)
}

// FuzzDecodeStream also compares the reader of plain frames with the general one.
func FuzzDecodeStream(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, legacy, err := wire.DecodeStream(b)
		if err == nil && (frame.Type == "") == (legacy == nil) {
			t.Fatalf("%q: got %+v and %+v", b, frame, legacy)
		}
		general(t, b, err, frame.Type, frame.Data, legacy != nil)
	})
}

func FuzzDecodeInput(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, err := wire.DecodeInput(b)
		general(t, b, err, frame.Type, frame.Data, false)
	})
}

// general checks type and data against a reading of b that takes no short cut.
func general(t *testing.T, b []byte, err error, typ string, data []byte, legacy bool) {
	t.Helper()
	var want struct {
		Type string  `json:"type"`
		Data *string `json:"data"`
	}
	if wire.Decode(b, &want) != nil {
		if err == nil {
			t.Fatalf("accepted %q", b)
		}
		return
	}
	if err != nil || legacy {
		return // for another field
	}
	if got := strings.ToLower(strings.TrimSpace(want.Type)); got != typ {
		t.Fatalf("%q: type %q, want %q", b, typ, got)
	}
	if want.Data != nil && !bytes.Equal(slowData(*want.Data), data) {
		t.Fatalf("%q: data %q, want %q", b, data, slowData(*want.Data))
	}
}

// FuzzLineReader compares the reader with strings.Split.
func FuzzLineReader(f *testing.F) {
	f.Add([]byte("a\nbc\n\nd"), uint16(3), uint8(0))
	f.Add([]byte("abcd\n"), uint16(3), uint8(1))
	f.Add(bytes.Repeat([]byte("xy\n"), 3000), uint16(2), uint8(2))
	f.Add(append(bytes.Repeat([]byte("x"), 9000), '\n'), uint16(8999), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, bound uint16, how uint8) {
		var r io.Reader = bytes.NewReader(b)
		switch how % 4 {
		case 1:
			r = iotest.OneByteReader(r)
		case 2:
			r = iotest.HalfReader(r)
		case 3:
			r = iotest.DataErrReader(r)
		}
		l := wire.NewLineReader(r, int(bound), &limiter{limit: 1})
		rest := b
		for {
			i := bytes.IndexByte(rest, '\n')
			line, err := l.ReadLine()
			switch {
			case i > int(bound) || i < 0 && len(rest) > int(bound):
				if !errors.Is(err, wire.ErrLineTooLong) {
					t.Fatalf("line of %d bytes: %v", i, err)
				}
				return
			case i < 0 && len(rest) > 0:
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("begun line: %v", err)
				}
				return
			case i < 0:
				if !errors.Is(err, io.EOF) {
					t.Fatalf("end: %v", err)
				}
				return
			case err != nil || !bytes.Equal(line, rest[:i]):
				t.Fatalf("got %q, %v, want %q", line, err, rest[:i])
			}
			rest = rest[i+1:]
		}
	})
}

// FuzzFrameReader: what is read is what was written, and nothing of a bad stream
// is believed.
func FuzzFrameReader(f *testing.F) {
	f.Add(wire.AppendFrame(wire.AppendFrame(nil, wire.FrameStdout, []byte("hello")), wire.FrameEnd, nil))
	f.Add([]byte{1, 0, 0, 0})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{9, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.NewFrameReader(bytes.NewReader(b))
		var back []byte
		for {
			kind, p, err := r.ReadFrame()
			if err == nil {
				back = wire.AppendFrame(back, kind, p)
				continue
			}
			if errors.Is(err, io.EOF) != (len(back) == len(b)) || !bytes.HasPrefix(b, back) {
				t.Fatalf("read %d of %d bytes, then %v", len(back), len(b), err)
			}
			return
		}
	})
}

func FuzzParseHandshake(f *testing.F) {
	for _, s := range []string{"OK 52\n", "CONNECT 10700\n", "OK 4294967296", "OK +1", " CONNECT 1 "} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, ok := wire.ParseOK(b); ok {
			if m, ok := wire.ParseOK([]byte(wire.OKLine(n))); !ok || m != n {
				t.Errorf("%q is %d, written it is %d", b, n, m)
			}
			if _, ok := wire.ParseConnect(b); ok {
				t.Errorf("%q is both", b)
			}
		}
		if n, ok := wire.ParseConnect(b); ok {
			if m, ok := wire.ParseConnect([]byte(wire.ConnectLine(n))); !ok || m != n {
				t.Errorf("%q is %d, written it is %d", b, n, m)
			}
		}
	})
}
