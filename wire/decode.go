package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"
)

// Valid reports what keeps b from being one JSON value of acceptable form:
// syntax, UTF-8, nesting deeper than MaxDepth.
func Valid(b []byte) error {
	if !utf8.Valid(b) {
		return errors.New("not valid UTF-8")
	}
	if err := checkDepth(b); err != nil {
		return err
	}
	if !json.Valid(b) {
		// Unmarshal tells where, Valid only whether.
		var v any
		if err := json.Unmarshal(b, &v); err != nil {
			return err
		}
		return errors.New("not valid JSON")
	}
	return nil
}

func checkDepth(b []byte) error {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return fmt.Errorf("nested deeper than %d levels", MaxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// Decode reads the one JSON value in data into v, a pointer. Unlike
// json.Unmarshal it matches keys exactly and refuses a key given twice, at every
// level. Unknown keys are ignored, as both protocols require of their readers.
// Null leaves its target as it is.
func Decode(data []byte, v any) error {
	if err := Valid(data); err != nil {
		return err
	}
	rv := reflect.ValueOf(v)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return errors.New("decode target is not a pointer")
	}
	return decodeValue(bytes.TrimSpace(data), rv.Elem())
}

var (
	rawMessageType  = reflect.TypeFor[json.RawMessage]()
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
	case t.Kind() == reflect.Pointer:
		p := reflect.New(t.Elem())
		if err := decodeValue(raw, p.Elem()); err != nil {
			return err
		}
		v.Set(p)
		return nil
	case reflect.PointerTo(t).Implements(unmarshalerType):
		return json.Unmarshal(raw, v.Addr().Interface())
	case t.Kind() == reflect.Struct:
		return decodeObject(raw, v)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		return decodeArray(raw, v)
	default:
		return cleanTypeError(json.Unmarshal(raw, v.Addr().Interface()))
	}
}

// cleanTypeError leaves Go's own names out of what a peer is told.
func cleanTypeError(err error) error {
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return fmt.Errorf("%s where %s is wanted", te.Value, te.Type)
	}
	return err
}

func decodeObject(raw []byte, v reflect.Value) error {
	if raw[0] != '{' {
		return errors.New("not an object")
	}
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool, len(fields))
	s := splitter{b: raw[1:]}
	for {
		key, ok := s.next()
		if !ok {
			return nil
		}
		var name string
		if err := json.Unmarshal(key, &name); err != nil {
			return err
		}
		value, _ := s.next()
		if seen[name] {
			return fmt.Errorf("key %.64q is given twice", name)
		}
		seen[name] = true
		index, known := fields[name]
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
		return errors.New("not an array")
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
	for i < len(s.b) && strings.IndexByte(" \t\r\n,:", s.b[i]) >= 0 {
		i++
	}
	if i >= len(s.b) || s.b[i] == '}' || s.b[i] == ']' {
		return nil, false
	}
	start := i
	depth, inString := 0, false
	for ; i < len(s.b); i++ {
		c := s.b[i]
		switch {
		case inString:
			if c == '\\' {
				i++
			} else if c == '"' {
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
		case depth > 0 && (c == '}' || c == ']'):
			depth--
		case depth == 0 && strings.IndexByte(" \t\r\n,:}]", c) >= 0:
			tok := s.b[start:i]
			s.b = s.b[i:]
			return tok, true
		}
	}
	tok := s.b[start:]
	s.b = nil
	return tok, len(tok) > 0
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
