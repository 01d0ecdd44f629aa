package cli

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxMessage caps one message on standard error in bytes (T23).
const maxMessage = 4 << 10

// printable makes s safe for a terminal and for one line: control characters,
// bidirectional marks, invisible characters and bytes that are not UTF-8 are
// escaped as Go writes them in string literals, and what is beyond limit is cut.
func printable(s string, limit int) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		piece := s[i : i+size]
		switch {
		case r == utf8.RuneError && size == 1:
			piece = fmt.Sprintf(`\x%02x`, s[i])
		case r == '\n':
			piece = `\n`
		case r == '\t':
			piece = `\t`
		case r == '\r':
			piece = `\r`
		case unicode.IsPrint(r):
		case r < 0x80:
			piece = fmt.Sprintf(`\x%02x`, r)
		case r < 0x10000:
			piece = fmt.Sprintf(`\u%04x`, r)
		default:
			piece = fmt.Sprintf(`\U%08x`, r)
		}
		if b.Len()+len(piece) > limit {
			return b.String() + fmt.Sprintf(" ... (%d bytes more)", len(s)-i)
		}
		b.WriteString(piece)
		i += size
	}
	return b.String()
}

// clip cuts s, made printable, to a number of characters.
func clip(s string, limit int) string {
	r := []rune(printable(s, 4*limit))
	if len(r) <= limit {
		return string(r)
	}
	return string(r[:limit-3]) + "..."
}

// cell makes s safe for a column of a table.
func cell(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s, 200)
}

// quoted is how a name that somebody else chose appears within a sentence.
func quoted(s string) string {
	return `"` + strings.ReplaceAll(printable(s, 400), `"`, `\"`) + `"`
}
