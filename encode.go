package bouvet

import (
	"bytes"
	"encoding/json"
	"errors"

	"github.com/bouvet-run/bouvet/wire"
)

// errNotText means that a string for the guest cannot be said in JSON.
var errNotText = errors.New("text is not valid UTF-8; a file's content goes through WriteBytes or Upload, a command's input through Stdin")

// appendLine is wire.AppendLine that refuses what JSON would change: the guest
// would run another command, or use another file, than was asked for (threat T10).
func appendLine(dst []byte, v any) ([]byte, error) {
	line, err := wire.AppendLine(dst, v)
	if err != nil {
		return dst, err
	}
	if _, raw := v.(json.RawMessage); !raw && wasReplaced(line[len(dst):]) {
		return dst, errNotText
	}
	return line, nil
}

// wasReplaced reports whether encoding/json has put a replacement character in the
// place of bytes: it escapes that one, and writes one of the caller's as it is.
func wasReplaced(line []byte) bool {
	mark := []byte(`\ufffd`)
	for {
		i := bytes.Index(line, mark)
		if i < 0 {
			return false
		}
		before := line[:i]
		if escaped := len(before) - len(bytes.TrimRight(before, `\`)); escaped%2 == 0 {
			return true
		}
		line = line[i+len(mark):]
	}
}
