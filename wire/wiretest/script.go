package wiretest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Script is what a peer does on one connection. It may be run any number of
// times, concurrently too.
type Script struct {
	steps []step
}

type step struct {
	line   int // of the script, from 1
	verb   string
	text   string // of writing steps, before expansion
	data   []byte // of bytes
	count  int64  // of repeat, garbage and loop
	seed   uint64
	wait   time.Duration
	expect *regexp.Regexp
}

// Parse reads a script. Its errors name the line.
func Parse(script string) (*Script, error) {
	s := &Script{}
	n := 0
	for text := range strings.Lines(script) {
		n++
		text = strings.TrimLeft(strings.TrimRight(text, "\r\n"), " \t")
		if text == "" || text[0] == '#' {
			continue
		}
		st, err := parseStep(text)
		if err != nil {
			return nil, fmt.Errorf("script line %d: %w", n, err)
		}
		st.line = n
		s.steps = append(s.steps, st)
	}
	return s, nil
}

func parseStep(text string) (step, error) {
	verb, rest, _ := strings.Cut(text, " ")
	st := step{verb: verb}
	var err error
	switch verb {
	case ">", ">>":
		st.text, err = unescape(rest)
	case "<":
		st.expect, err = regexp.Compile(rest)
	case "bytes":
		st.data, err = hex.DecodeString(strings.Join(strings.Fields(rest), ""))
	case "repeat":
		number, text, _ := strings.Cut(rest, " ")
		if st.count, err = parseCount(number); err == nil {
			st.text, err = unescape(text)
		}
		if err == nil && st.text == "" {
			err = errors.New("repeat wants a text")
		}
	case "garbage":
		number, seed, _ := strings.Cut(rest, " ")
		if st.count, err = parseCount(number); err == nil {
			st.seed, err = strconv.ParseUint(seed, 0, 64)
		}
	case "drip":
		duration, text, _ := strings.Cut(rest, " ")
		if st.wait, err = time.ParseDuration(duration); err == nil {
			st.text, err = unescape(text)
		}
	case "loop":
		st.count, err = parseCount(rest)
	case "eof", "stall", "close", "closewrite":
		if rest != "" {
			err = fmt.Errorf("%s takes nothing", verb)
		}
	default:
		err = fmt.Errorf("unknown step %q", verb)
	}
	return st, err
}

func parseCount(s string) (int64, error) {
	shift := 0
	if s != "" {
		if i := strings.IndexByte("KMG", s[len(s)-1]); i >= 0 {
			shift, s = 10*(i+1), s[:len(s)-1]
		}
	}
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a count", s)
	}
	return n << shift, nil
}

// unescape resolves the escapes of a text. A backslash before anything else stands
// for itself, so that JSON's own escapes need no doubling.
func unescape(s string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' || i+1 == len(s) {
			out.WriteByte(s[i])
			continue
		}
		i++
		switch s[i] {
		case 'n':
			out.WriteByte('\n')
		case 'r':
			out.WriteByte('\r')
		case 't':
			out.WriteByte('\t')
		case '0':
			out.WriteByte(0)
		case '\\':
			out.WriteByte('\\')
		case 'x':
			if i+3 > len(s) {
				return "", errors.New(`\x wants two digits`)
			}
			b, err := hex.DecodeString(s[i+1 : i+3])
			if err != nil {
				return "", errors.New(`\x wants two digits`)
			}
			out.Write(b)
			i += 2
		default:
			out.WriteByte('\\')
			out.WriteByte(s[i])
		}
	}
	return out.String(), nil
}
