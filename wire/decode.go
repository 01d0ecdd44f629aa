package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
)

// Decode reads the one JSON value in data into v, a pointer. Beyond what Valid
// refuses it is strict where json.Unmarshal is not: keys match exactly, integers
// are written as integers and keep all their bits. Unknown keys are ignored, as
// both protocols require of their readers. Null leaves its target as it is.
func Decode(data []byte, v any) error {
	if err := Valid(data); err != nil {
		return err
	}
	return decodeValid(data, v)
}

// decodeValid is Decode for data that Valid has accepted.
func decodeValid(data []byte, v any) error {
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return errors.New("decode target is not a pointer")
	}
	return decodeValue(bytes.TrimSpace(data), rv.Elem())
}

var (
	rawMessageType  = reflect.TypeFor[json.RawMessage]()
	dataType        = reflect.TypeFor[Data]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

func decodeValue(raw []byte, v reflect.Value) error {
	t := v.Type()
	switch {
	case t == rawMessageType:
		v.SetBytes(bytes.Clone(raw))
		return nil
	case raw[0] == 'n':
		return nil
	case t == dataType:
		return decodeData(raw, v)
	case t.Kind() == reflect.Pointer:
		p := reflect.New(t.Elem())
		if err := decodeValue(raw, p.Elem()); err != nil {
			return err
		}
		v.Set(p)
		return nil
	case reflect.PointerTo(t).Implements(unmarshalerType):
		return brief(json.Unmarshal(raw, v.Addr().Interface()))
	}
	switch t.Kind() {
	case reflect.Struct:
		return decodeObject(raw, v)
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return decodeBytes(raw, v)
		}
		return decodeArray(raw, v)
	case reflect.String:
		if raw[0] != '"' {
			return mismatch(raw, "string")
		}
		v.SetString(string(textOf(raw)))
		return nil
	case reflect.Bool:
		if raw[0] != 't' && raw[0] != 'f' {
			return mismatch(raw, "boolean")
		}
		v.SetBool(raw[0] == 't')
		return nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(string(head(raw)), 10, t.Bits())
		if err != nil {
			return mismatch(raw, "integer of "+strconv.Itoa(t.Bits())+" bits")
		}
		v.SetInt(n)
		return nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(string(head(raw)), 10, t.Bits())
		if err != nil {
			return mismatch(raw, "unsigned integer of "+strconv.Itoa(t.Bits())+" bits")
		}
		v.SetUint(n)
		return nil
	default:
		return brief(json.Unmarshal(raw, v.Addr().Interface()))
	}
}

// shown is how many bytes of a peer's value an error quotes.
const shown = 24

// head is raw, or as much of it as is too long for any integer.
func head(raw []byte) []byte { return raw[:min(len(raw), shown)] }

// mismatch says what was found in place of what is wanted, without Go's own names
// and with a bound, because peers are told.
func mismatch(raw []byte, want string) error {
	switch raw[0] {
	case '"':
		return errors.New("string where " + want + " is wanted")
	case '{':
		return errors.New("object where " + want + " is wanted")
	case '[':
		return errors.New("array where " + want + " is wanted")
	case 't', 'f':
		return errors.New("boolean where " + want + " is wanted")
	default:
		return fmt.Errorf("number %s where %s is wanted", head(raw), want)
	}
}

// brief bounds the text of an error of package json, which quotes numbers whole.
func brief(err error) error {
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return fmt.Errorf("%.*s where %s is wanted", shown, te.Value, te.Type)
	}
	return err
}

// textOf returns the text of a valid JSON string, for reading only.
func textOf(raw []byte) []byte {
	inner := raw[1 : len(raw)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	return unescape(inner)
}

func decodeBytes(raw []byte, v reflect.Value) error {
	if raw[0] != '"' {
		return mismatch(raw, "base64 string")
	}
	out, err := base64.StdEncoding.AppendDecode(nil, textOf(raw))
	if err != nil {
		return err
	}
	v.SetBytes(out)
	return nil
}

func decodeData(raw []byte, v reflect.Value) error {
	if raw[0] != '"' {
		return mismatch(raw, "string")
	}
	text := textOf(raw)
	out, err := base64.StdEncoding.AppendDecode(nil, text)
	if err != nil {
		out = bytes.Clone(text) // it stands for itself: checklist J7, L19
	}
	v.SetBytes(out)
	return nil
}

func decodeObject(raw []byte, v reflect.Value) error {
	if raw[0] != '{' {
		return mismatch(raw, "object")
	}
	fields := fieldsOf(v.Type())
	s := splitter{b: raw[1:]}
	for {
		key, ok := s.next()
		if !ok {
			return nil
		}
		name := textOf(key)
		value, _ := s.next()
		index, known := fields[string(name)]
		if !known {
			continue
		}
		if err := decodeValue(value, v.FieldByIndex(index)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
}

func decodeArray(raw []byte, v reflect.Value) error {
	if raw[0] != '[' {
		return mismatch(raw, "array")
	}
	out := reflect.MakeSlice(v.Type(), 0, 4)
	elem := reflect.New(v.Type().Elem()).Elem()
	s := splitter{b: raw[1:]}
	for {
		value, ok := s.next()
		if !ok {
			v.Set(out)
			return nil
		}
		elem.SetZero()
		if err := decodeValue(value, elem); err != nil {
			return err
		}
		out = reflect.Append(out, elem)
	}
}

// splitter walks the tokens directly inside an object or array already known to
// be valid JSON: keys and values alike, separators skipped.
type splitter struct{ b []byte }

func (s *splitter) next() ([]byte, bool) {
	i := 0
	for i < len(s.b) && isSeparator(s.b[i]) {
		i++
	}
	if i >= len(s.b) || s.b[i] == '}' || s.b[i] == ']' {
		return nil, false
	}
	start := i
	for depth := 0; i < len(s.b); {
		switch c := s.b[i]; {
		case c == '"':
			i += textLen(s.b[i:])
			if depth > 0 {
				continue
			}
			return s.take(start, i)
		case c == '{' || c == '[':
			depth++
		case depth > 0 && (c == '}' || c == ']'):
			if depth--; depth == 0 {
				return s.take(start, i+1)
			}
		case depth == 0 && (isSeparator(c) || c == '}' || c == ']'):
			return s.take(start, i)
		}
		i++
	}
	return s.take(start, i)
}

func (s *splitter) take(start, end int) ([]byte, bool) {
	tok := s.b[start:end]
	s.b = s.b[end:]
	return tok, true
}

func isSeparator(c byte) bool {
	return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == ',' || c == ':'
}

// textLen returns the length of the valid JSON string that b begins with, the
// quotes included.
func textLen(b []byte) int {
	for i := 1; ; {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return len(b)
		}
		end := i + n
		slashes := 0
		for b[end-1-slashes] == '\\' {
			slashes++
		}
		i = end + 1
		if slashes%2 == 0 {
			return i
		}
	}
}

var fieldCache sync.Map // reflect.Type -> map[string][]int

// fieldsOf maps the JSON names of a struct's fields, those of embedded structs
// included, to their index paths.
func fieldsOf(t reflect.Type) map[string][]int {
	if m, ok := fieldCache.Load(t); ok {
		return m.(map[string][]int)
	}
	m := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		m[name] = f.Index
	}
	fieldCache.Store(t, m)
	return m
}

// kindOf returns the first byte of a JSON value, 0 for none.
func kindOf(raw []byte) byte {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return 0
	}
	return raw[0]
}

// AppendLine appends v as one line of JSON, the newline included. Text is not
// escaped for HTML: nobody here renders it, and it would cost six bytes a
// character.
func AppendLine(dst []byte, v any) ([]byte, error) {
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return buf.Bytes(), nil
}
