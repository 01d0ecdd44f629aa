package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// ErrDuplicateKey means that an object of a message gives a key twice, so that two
// readers could take it for two different messages.
var ErrDuplicateKey = errors.New("key is given twice")

// Why a message that encoding/json would read is refused, and that the text is
// not JSON at all.
var (
	errSyntax    = errors.New("not valid JSON")
	errSurrogate = errors.New("half of a surrogate pair in a string")
	errDepth     = fmt.Errorf("nested deeper than %d levels", MaxDepth)
	errElements  = fmt.Errorf("an array has more than %d elements", MaxElements)
	errKeys      = fmt.Errorf("an object has more than %d keys", MaxKeys)
)

// Valid reports what keeps b from being one JSON value of acceptable form:
// syntax, UTF-8, half surrogate pairs, a key given twice in an object
// (ErrDuplicateKey), more than MaxDepth levels, MaxKeys keys or MaxElements
// elements. The text of its errors has a bound, whatever b holds.
func Valid(b []byte) error {
	s := scanner{b: b}
	s.space()
	err := s.value()
	if err == nil {
		if s.space(); s.i < len(b) {
			err = errSyntax
		}
	}
	switch {
	case err == nil:
		return s.duplicate
	case !errors.Is(err, errSyntax):
		return err
	case !utf8.Valid(b):
		return errors.New("not valid UTF-8")
	}
	// What follows builds nothing: it only says where.
	var v json.RawMessage
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	return errSyntax
}

// A scanner checks a JSON text in one pass.
type scanner struct {
	b         []byte
	i         int
	depth     int
	keys      [][]byte // of the objects that are open, outermost first
	duplicate error    // the first ErrDuplicateKey; the syntax is still checked to the end
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\r', '\n':
			s.i++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) value() error {
	switch c := s.peek(); {
	case c == '"':
		_, _, err := s.text()
		return err
	case c == '{':
		return s.object()
	case c == '[':
		return s.array()
	case c == 't':
		return s.word("true")
	case c == 'f':
		return s.word("false")
	case c == 'n':
		return s.word("null")
	case c == '-' || isDigit(c):
		return s.number()
	default:
		return errSyntax
	}
}

func (s *scanner) word(w string) error {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return errSyntax
	}
	s.i += len(w)
	return nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if !s.digits() {
		return errSyntax
	}
	if s.peek() == '.' {
		if s.i++; !s.digits() {
			return errSyntax
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		if !s.digits() {
			return errSyntax
		}
	}
	return nil
}

func (s *scanner) digits() bool {
	start := s.i
	for isDigit(s.peek()) {
		s.i++
	}
	return s.i > start
}

func (s *scanner) enter() error {
	s.i++
	if s.depth++; s.depth > MaxDepth {
		return errDepth
	}
	s.space()
	return nil
}

func (s *scanner) array() error {
	if err := s.enter(); err != nil {
		return err
	}
	defer func() { s.depth-- }()
	if s.peek() == ']' {
		s.i++
		return nil
	}
	for n := 1; ; n++ {
		if n > MaxElements {
			return errElements
		}
		if err := s.value(); err != nil {
			return err
		}
		s.space()
		c := s.peek()
		s.i++
		if c == ']' {
			return nil
		}
		if c != ',' {
			return errSyntax
		}
		s.space()
	}
}

func (s *scanner) object() error {
	if err := s.enter(); err != nil {
		return err
	}
	base := len(s.keys)
	defer func() {
		s.depth--
		s.keys = s.keys[:base]
	}()
	if s.peek() == '}' {
		s.i++
		return nil
	}
	var seen uint64 // a bit for each kind of key so far: most keys need no search
	for {
		if s.peek() != '"' {
			return errSyntax
		}
		key, escaped, err := s.text()
		if err != nil {
			return err
		}
		if escaped {
			key = unescape(key)
		}
		if err := s.addKey(key, base, &seen); err != nil {
			return err
		}
		s.space()
		if s.peek() != ':' {
			return errSyntax
		}
		s.i++
		s.space()
		if err := s.value(); err != nil {
			return err
		}
		s.space()
		c := s.peek()
		s.i++
		if c == '}' {
			return nil
		}
		if c != ',' {
			return errSyntax
		}
		s.space()
	}
}

func (s *scanner) addKey(key []byte, base int, seen *uint64) error {
	bit := uint64(1) << (len(key) & 63)
	if len(key) > 0 {
		bit = 1 << ((len(key) + 5*int(key[0]) + 11*int(key[len(key)-1])) & 63)
	}
	if *seen&bit != 0 && s.duplicate == nil {
		for _, k := range s.keys[base:] {
			if string(k) == string(key) {
				s.duplicate = fmt.Errorf("%w: %.64q", ErrDuplicateKey, key)
				break
			}
		}
	}
	*seen |= bit
	if len(s.keys)-base >= MaxKeys {
		return errKeys
	}
	s.keys = append(s.keys, key)
	return nil
}

// text reads a string and returns what is between its quotes, escapes and all.
func (s *scanner) text() (inner []byte, escaped bool, err error) {
	s.i++
	start := s.i
	for {
		s.i += plainPrefix(s.b[s.i:])
		c := s.peek()
		switch {
		case s.i >= len(s.b) || c < 0x20:
			return nil, false, errSyntax
		case c == '"':
			inner = s.b[start:s.i]
			s.i++
			return inner, escaped, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		default:
			r, n := utf8.DecodeRune(s.b[s.i:])
			if r == utf8.RuneError && n == 1 {
				return nil, false, errSyntax
			}
			s.i += n
		}
	}
}

func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		return errSyntax
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
	default:
		return errSyntax
	}
	r, ok := hex4(s.b[s.i+2:])
	if !ok {
		return errSyntax
	}
	s.i += 6
	if !utf16.IsSurrogate(r) {
		return nil
	}
	if s.i+1 >= len(s.b) || s.b[s.i] != '\\' || s.b[s.i+1] != 'u' {
		return errSurrogate
	}
	low, ok := hex4(s.b[s.i+2:])
	if !ok {
		return errSyntax
	}
	if utf16.DecodeRune(r, low) == utf8.RuneError {
		return errSurrogate
	}
	s.i += 6
	return nil
}

// hex4 reads the four digits of a \u escape.
func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// plainPrefix returns how many bytes at the start of b stand for themselves in a
// string: printable ASCII other than the quote and the backslash. It looks at
// eight bytes at a time.
func plainPrefix(b []byte) int {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	i := 0
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		special := (w | (w-ones*0x20)&^w | (quote-ones)&^quote | (slash-ones)&^slash) & highs
		if special != 0 {
			return i + bits.TrailingZeros64(special)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < 0x20 || c >= 0x80 || c == '"' || c == '\\' {
			break
		}
	}
	return i
}

// unescape returns the text that inner, the inside of a valid JSON string, stands
// for.
func unescape(inner []byte) []byte {
	out := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); {
		if inner[i] != '\\' {
			n := max(plainPrefix(inner[i:]), 1) // 1: a byte beyond ASCII
			out = append(out, inner[i:i+n]...)
			i += n
			continue
		}
		c := inner[i+1]
		i += 2
		switch c {
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'u':
			r, _ := hex4(inner[i:])
			i += 4
			if utf16.IsSurrogate(r) {
				low, _ := hex4(inner[i+2:])
				r = utf16.DecodeRune(r, low)
				i += 6
			}
			out = utf8.AppendRune(out, r)
			continue
		}
		out = append(out, c)
	}
	return out
}
