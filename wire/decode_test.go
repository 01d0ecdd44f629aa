package wire_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bouvet-run/bouvet/wire"
)

// message has a field of each kind that the protocols use.
type message struct {
	Text   string            `json:"text"`
	Flag   bool              `json:"flag"`
	I32    int32             `json:"i32"`
	Int    int               `json:"int"`
	U64    uint64            `json:"u64"`
	U16    uint16            `json:"u16"`
	Ptr    *uint64           `json:"ptr"`
	List   []string          `json:"list"`
	Inner  *inner            `json:"inner"`
	Inners []inner           `json:"inners"`
	Bytes  []byte            `json:"bytes"`
	Data   wire.Data         `json:"data"`
	Raw    json.RawMessage   `json:"raw"`
	Float  float64           `json:"float"`
	Any    any               `json:"any"`
	Map    map[string]string `json:"map"`
	Hidden string            `json:"-"`
	embedded
}

type inner struct {
	K string `json:"k"`
	N uint64 `json:"n"`
}

type embedded struct {
	Extra string `json:"extra"`
}

func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     message
	}{
		{"empty", `{}`, message{}},
		{"white space", " \t\r\n{ \"text\" :\t\"a\" , \"flag\" : true } \n", message{Text: "a", Flag: true}},
		{"escapes", `{"text":"\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00é€😀"}`, message{Text: "\"\\/\b\f\n\r\tAé€😀é€😀"}},
		{"escaped key", `{"te\u0078t":"a"}`, message{Text: "a"}},
		{"structure in strings", `{"text":"}]{[,:\"","list":["]","}",","]}`, message{Text: `}]{[,:"`, List: []string{"]", "}", ","}}},
		{"T17 case variants are other keys", `{"TEXT":"a","Text":"b","tExt":"c"}`, message{}},
		{"T17 case folding of K and ſ", "{\"\u212Aey\":1,\"li\u017ft\":[\"a\"],\"inner\":{\"\u212A\":\"x\"}}", message{Inner: &inner{}}},
		{"unknown keys", `{"x":{"y":[1,{"z":null}]},"text":"a","w":"}"}`, message{Text: "a"}},
		{"null leaves alone", `{"text":null,"flag":null,"u64":null,"ptr":null,"list":null,"inner":null,"data":null}`, message{}},
		{"u64 max", `{"u64":18446744073709551615}`, message{U64: math.MaxUint64}},
		{"i32 limits", `{"i32":-2147483648,"int":-9223372036854775808}`, message{I32: math.MinInt32, Int: math.MinInt64}},
		{"minus zero", `{"i32":-0}`, message{}},
		{"pointers", `{"ptr":0,"inner":{"k":"a","n":1}}`, message{Ptr: new(uint64(0)), Inner: &inner{"a", 1}}},
		{"arrays", `{"list":["a",""],"inners":[{"k":"a"},{"n":2},{}]}`, message{List: []string{"a", ""}, Inners: []inner{{K: "a"}, {N: 2}, {}}}},
		{"empty array", `{"list":[ ]}`, message{List: []string{}}},
		{"bytes", `{"bytes":"AAEC/w=="}`, message{Bytes: []byte{0, 1, 2, 255}}},
		{"J7 data in base64", `{"data":"aGk="}`, message{Data: wire.Data("hi")}},
		{"J7 data in base64 with an escaped digit", `{"data":"\/\/\/\/"}`, message{Data: wire.Data("\xff\xff\xff")}},
		{"J7 data as plain string", `{"data":"not base64!\n"}`, message{Data: wire.Data("not base64!\n")}},
		{"raw", `{"raw": {"a" : [1, "}" ]} ,"text":"x"}`, message{Raw: json.RawMessage(`{"a" : [1, "}" ]}`), Text: "x"}},
		{"raw null", `{"raw":null}`, message{Raw: json.RawMessage(`null`)}},
		{"others", `{"float":1.5e3,"any":[1,{"a":"b"}],"map":{"A":"1","a":"2"}}`, message{
			Float: 1500, Any: []any{1.0, map[string]any{"a": "b"}}, Map: map[string]string{"A": "1", "a": "2"},
		}},
		{"hidden", `{"-":"a","Hidden":"b"}`, message{}},
		{"embedded", `{"extra":"e"}`, message{embedded: embedded{"e"}}},
		{"32 levels", `{"x":` + strings.Repeat("[", 31) + strings.Repeat("]", 31) + `}`, message{}},
		{"brackets in strings are no levels", `{"text":"` + strings.Repeat("[", 100) + `"}`, message{Text: strings.Repeat("[", 100)}},
		{"256 keys", object(wire.MaxKeys), message{}},
		{"as many elements as allowed", `{"x":[0` + strings.Repeat(",0", wire.MaxElements-1) + `]}`, message{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got message
			if err := wire.Decode([]byte(tc.in), &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(message{})); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

// object returns an object of n keys.
func object(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"key%d":%d`, i, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestDecodeRefuses(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"nothing", ``, "unexpected end of JSON input"},
		{"white space", `  `, "unexpected end of JSON input"},
		{"two values", `{} {}`, "after top-level value"},
		{"half", `{"text":"a`, "unexpected end"},
		{"comment", `{/**/}`, "invalid character"},
		{"trailing comma", `{"text":"a",}`, "invalid character"},
		{"comma in array", `[1,]`, "invalid character"},
		{"key without quotes", `{text:"a"}`, "invalid character"},
		{"control character in string", "{\"text\":\"a\nb\"}", "invalid character"},
		{"bad escape", `{"text":"\x41"}`, "invalid character"},
		{"bad hex", `{"text":"\u00g0"}`, "invalid character"},
		{"leading zero", `{"u64":01}`, "invalid character"},
		{"plus", `{"u64":+1}`, "invalid character"},
		{"dot", `{"float":1.}`, "invalid character"},
		{"exponent", `{"float":1e}`, "invalid character"},
		{"NaN", `{"float":NaN}`, "invalid character"},
		{"byte order mark", "\ufeff{}", "invalid character"},
		{"golden text", `not json`, "invalid character 'o' in literal null (expecting 'u')"},
		{"T17 invalid UTF-8 in string", "{\"text\":\"\xff\"}", "not valid UTF-8"},
		{"T17 overlong UTF-8", "{\"text\":\"\xc0\xaf\"}", "not valid UTF-8"},
		{"T17 surrogate in UTF-8", "{\"text\":\"\xed\xa0\x80\"}", "not valid UTF-8"},
		{"T17 invalid UTF-8 in key", "{\"\xff\":1}", "not valid UTF-8"},
		{"T17 invalid UTF-8 outside", "{}\xff", "not valid UTF-8"},
		{"T17 high surrogate alone", `{"text":"\ud83d"}`, "surrogate"},
		{"T17 low surrogate alone", `{"text":"\ude00"}`, "surrogate"},
		{"T17 high surrogate twice", `{"text":"\ud83d\ud83d"}`, "surrogate"},
		{"T17 high surrogate and text", `{"text":"\ud83dabcdef"}`, "surrogate"},
		{"T17 surrogate in a value nobody reads", `{"x":["\ude00"]}`, "surrogate"},
		{"T17 33 levels", `{"x":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, "nested deeper than 32 levels"},
		{"T17 10000 levels, unclosed", strings.Repeat("[", 10000), "nested deeper than 32 levels"},
		{"T17 key twice", `{"text":"a","text":"b"}`, `key is given twice: "text"`},
		{"T17 key twice, escaped", `{"text":"a","t\u0065xt":"b"}`, `key is given twice: "text"`},
		{"T17 key twice, null", `{"text":"a","text":null}`, `key is given twice`},
		{"T17 unknown key twice", `{"x":1,"y":2,"x":3}`, `key is given twice: "x"`},
		{"T17 empty key twice", `{"":1,"":2}`, `key is given twice: ""`},
		{"T17 key twice in an inner object", `{"inner":{"k":"a","n":1,"k":"b"}}`, `key is given twice: "k"`},
		{"T17 key twice in an array", `{"inners":[{"k":"a"},{"n":1,"n":1}]}`, `key is given twice: "n"`},
		{"T17 key twice in what is skipped", `{"x":[{"y":{"a":1,"b":2,"a":3}}]}`, `key is given twice: "a"`},
		{"T17 key twice in what is kept raw", `{"raw":{"a":1,"a":2}}`, `key is given twice: "a"`},
		{"long key twice", `{"` + strings.Repeat("k", 1000) + `":1,"` + strings.Repeat("k", 1000) + `":2}`, `key is given twice: "` + strings.Repeat("k", 64) + `"`},
		{"257 keys", object(wire.MaxKeys + 1), "an object has more than 256 keys"},
		{"T21 too many elements", `{"x":[0` + strings.Repeat(",0", wire.MaxElements) + `]}`, "an array has more than 262144 elements"},
		{"T17 string for number", `{"u64":"1"}`, "u64: string where unsigned integer of 64 bits is wanted"},
		{"T17 object for string", `{"text":{}}`, "text: object where string is wanted"},
		{"T17 number for boolean", `{"flag":1}`, "flag: number 1 where boolean is wanted"},
		{"T17 boolean for object", `{"inner":true}`, "inner: boolean where object is wanted"},
		{"T17 object for array", `{"list":{}}`, "list: object where array is wanted"},
		{"T17 number in a list of strings", `{"list":["a",1]}`, "list: number 1 where string is wanted"},
		{"T17 array for bytes", `{"bytes":[1,2]}`, "bytes: array where base64 string is wanted"},
		{"T17 bytes not in base64", `{"bytes":"a"}`, "illegal base64"},
		{"T17 number for data", `{"data":1}`, "data: number 1 where string is wanted"},
		{"T17 array for message", `[]`, "array where object is wanted"},
		{"T17 string for message", `"a"`, "string where object is wanted"},
		{"T17 1e400", `{"u64":1e400}`, "number 1e400 where unsigned"},
		{"T17 1e400 as float", `{"float":1e400}`, "number 1e400 where float64 is wanted"},
		{"T17 2^64", `{"u64":18446744073709551616}`, "number 18446744073709551616 where unsigned"},
		{"T17 -1", `{"u64":-1}`, "number -1 where unsigned"},
		{"T17 -0 unsigned", `{"u64":-0}`, "number -0 where unsigned"},
		{"T17 1.0", `{"u64":1.0}`, "number 1.0 where unsigned"},
		{"T17 1e2", `{"i32":1e2}`, "number 1e2 where integer of 32 bits"},
		{"T21 exit code of 2^31", `{"i32":2147483648}`, "number 2147483648 where integer of 32 bits"},
		{"uint16", `{"u16":65536}`, "unsigned integer of 16 bits"},
		{"T17 a number of a million digits", `{"u64":` + strings.Repeat("9", 1<<20) + `}`, "u64: number " + strings.Repeat("9", 24) + " where"},
		{"a float of a million digits", `{"float":1` + strings.Repeat("0", 1<<20) + `}`, "float: number 1000"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var v message
			err := wire.Decode([]byte(tc.in), &v)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %.300v, want %q in it", err, tc.want)
			}
			if n := len(err.Error()); n > 400 {
				t.Errorf("error has %d bytes", n)
			}
			if got, want := errors.Is(err, wire.ErrDuplicateKey), strings.Contains(tc.name, "twice") && !strings.Contains(tc.name, "surrogate"); got != want {
				t.Errorf("is ErrDuplicateKey: got %v, want %v", got, want)
			}
		})
	}
}

func TestDecodeTarget(t *testing.T) {
	for name, v := range map[string]any{"nil": nil, "value": message{}, "nil pointer": (*message)(nil)} {
		if err := wire.Decode([]byte(`{}`), v); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// A hostile line must not cost much more memory than its own length.
func TestValidAllocates(t *testing.T) { // T17
	for name, line := range map[string]string{
		"nesting":  strings.Repeat("[", 1<<20),
		"keys":     `{"a":[` + strings.Repeat(`{"b":1,"c":{}},`, 10000) + `0]}`,
		"number":   strings.Repeat("9", 1<<20),
		"elements": `[` + strings.Repeat("0,", wire.MaxElements-1) + `0]`,
		"string":   `"` + strings.Repeat("x", 1<<20) + `"`,
	} {
		b := []byte(line)
		if got := allocated(func() { _ = wire.Valid(b) }); got > 1<<20 {
			t.Errorf("%s: %d bytes allocated, want at most 1 MiB", name, got)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAppendLine(t *testing.T) {
	got, err := wire.AppendLine([]byte("before "), map[string]any{"text": "<&>\n", "raw": json.RawMessage("{\n\"a\": 1}")})
	if err != nil {
		t.Fatal(err)
	}
	if want := "before " + `{"raw":{"a":1},"text":"<&>\n"}` + "\n"; string(got) != want { // B1
		t.Errorf("got %q, want %q", got, want)
	}
	if got, err := wire.AppendLine([]byte("kept"), func() {}); err == nil || string(got) != "kept" {
		t.Errorf("a value JSON cannot hold: got %q, %v", got, err)
	}
}

// The largest content that the protocol allows fits its line in the worst escaping
// of two encoders.
func TestLimitsHold(t *testing.T) {
	content := strings.Repeat("\x01", wire.MaxContent)
	line, err := wire.AppendLine(nil, wire.Request{
		JSONRPC: wire.Version, ID: math.MaxUint64, Method: wire.MethodWriteFile,
		Params: json.RawMessage(`{"path":"` + strings.Repeat(`\u0001`, 4096) + `","content":` + string(must(json.Marshal(content))) + `}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(line) > wire.MaxRPCLine {
		t.Errorf("write_file takes %d bytes, the bound is %d", len(line), wire.MaxRPCLine)
	}
	exec, err := wire.AppendLine(nil, wire.ExecRequest{Command: []string{strings.Repeat("\x01", 2<<20)}, EntropySeed: make([]byte, 4096)})
	if err != nil {
		t.Fatal(err)
	}
	if len(exec) > wire.MaxExecLine {
		t.Errorf("an exec request takes %d bytes, the bound is %d", len(exec), wire.MaxExecLine)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
