package agent

import (
	"io"
	"strings"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/wire"
)

// An outputStart keeps the first bytes of an output stream and counts the rest.
type outputStart struct {
	kept  []byte
	total uint64
}

// maxKept leaves room for a character that lies across the cut.
const maxKept = wire.MaxOutput + utf8.UTFMax

// readFrom reads r to its end. How it ends makes no difference: what has been
// read is what there is.
func (o *outputStart) readFrom(r io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		o.total += uint64(n) //nolint:gosec // not negative.
		if room := maxKept - len(o.kept); room > 0 {
			o.kept = append(o.kept, buf[:min(n, room)]...)
		}
		if err != nil {
			return
		}
	}
}

// String returns the text of an ExecResult: at most wire.MaxOutput bytes of valid
// UTF-8, cut between characters, and the suffix if anything was cut off.
func (o *outputStart) String() string {
	text := replaceInvalid(o.kept)
	if len(text) <= wire.MaxOutput && o.total <= uint64(len(o.kept)) {
		return text
	}
	end := min(wire.MaxOutput, len(text))
	for end > 0 && end < len(text) && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + wire.TruncatedSuffix
}

// replaceInvalid puts one U+FFFD in the place of each maximal invalid sequence,
// as Unicode recommends and the seed's agent does; Go itself replaces whole runs
// or single bytes.
func replaceInvalid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	var out strings.Builder
	out.Grow(len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r != utf8.RuneError || n > 1 {
			out.Write(b[:n])
			b = b[n:]
			continue
		}
		out.WriteRune(utf8.RuneError)
		b = b[invalidLen(b):]
	}
	return out.String()
}

// invalidLen returns the length of the maximal invalid sequence at the start of
// b: the longest beginning of some character, at least 1.
func invalidLen(b []byte) int {
	lo, hi, want := byte(0x80), byte(0xBF), 0
	switch c := b[0]; {
	case 0xC2 <= c && c <= 0xDF:
		want = 1
	case 0xE0 <= c && c <= 0xEF:
		want = 2
	case 0xF0 <= c && c <= 0xF4:
		want = 3
	}
	switch b[0] {
	case 0xE0:
		lo = 0xA0
	case 0xED:
		hi = 0x9F
	case 0xF0:
		lo = 0x90
	case 0xF4:
		hi = 0x8F
	}
	n := 1
	for n <= want && n < len(b) && lo <= b[n] && b[n] <= hi {
		n++
		lo, hi = 0x80, 0xBF
	}
	return n
}
