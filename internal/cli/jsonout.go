package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// writeJSON writes v as indented JSON and a newline. Characters that a terminal
// might obey (C1 controls, bidirectional marks) are escaped, which encoding/json
// does for ASCII only.
func writeJSON(w io.Writer, v any) error {
	var raw bytes.Buffer
	enc := json.NewEncoder(&raw)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("cannot write JSON: %w", err)
	}
	_, err := w.Write(escapeJSON(raw.Bytes()))
	return err
}

// escapeJSON rewrites valid JSON: what is not ASCII can only stand in strings.
func escapeJSON(in []byte) []byte {
	out := make([]byte, 0, len(in))
	for len(in) > 0 {
		r, size := utf8.DecodeRune(in)
		switch {
		case r == 0x7f:
			out = append(out, `\u007f`...)
		case r < utf8.RuneSelf || unicode.IsPrint(r) && r != utf8.RuneError:
			out = append(out, in[:size]...)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		in = in[size:]
	}
	return out
}

// writeString writes b as a JSON string, escaped like the rest, with one U+FFFD for
// each run of bytes that are not UTF-8.
func writeString(w *bufio.Writer, b []byte) {
	const hex = "0123456789abcdef"
	_ = w.WriteByte('"')
	broken := false
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		bad := r == utf8.RuneError && size == 1
		switch {
		case bad && broken:
		case r == '"' || r == '\\':
			_, _ = w.Write([]byte{'\\', byte(r)})
		case r >= ' ' && r < 0x7f:
			_ = w.WriteByte(byte(r))
		case r == '\n':
			_, _ = w.WriteString(`\n`)
		case r <= 0x7f:
			_, _ = w.Write([]byte{'\\', 'u', '0', '0', hex[r>>4], hex[r&15]})
		default:
			_, _ = w.Write(escapeJSON([]byte(string(r))))
		}
		broken = bad
		b = b[size:]
	}
	_ = w.WriteByte('"')
}
