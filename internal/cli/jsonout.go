package cli

import (
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
