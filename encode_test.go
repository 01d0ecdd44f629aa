package bouvet_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet"
)

// T10: JSON has no way to say text that is not UTF-8. It is refused, not changed.
func TestTextThatJSONWouldChange(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	for _, text := range []string{"\xff", "a\xc3(b", `\` + "\xed\xa0\x80", `\\` + "\xfe"} {
		for what, call := range map[string]func() error{
			"argument":    func() error { return s.Command(t.Context(), "echo", text).Run() },
			"directory":   func() error { c := s.Command(t.Context(), "true"); c.Dir = dir + text; return c.Run() },
			"environment": func() error { c := s.Command(t.Context(), "true"); c.Env = []string{"A=" + text}; return c.Run() },
			"command":     func() error { _, err := s.Execute(t.Context(), "echo "+text); return err },
			"code":        func() error { _, err := s.ExecuteCode(t.Context(), "sh", "echo "+text); return err },
			"path":        func() error { return s.WriteFile(t.Context(), dir+"/"+text, "") },
			"upload": func() error {
				_, err := s.Client().Upload(t.Context(), dir+"/"+text, strings.NewReader(""), nil)
				return err
			},
		} {
			if err := call(); !errors.Is(err, bouvet.ErrJSON) || !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("%s %q: got %v, want it refused as not UTF-8", what, text, err)
			}
		}
	}
	for _, text := range []string{"\ufffd", `\ufffd`, `\\ufffd`, `\` + "\ufffd", "ü"} {
		if out, err := s.Command(t.Context(), "printf", "%s", text).Output(); err != nil || string(out) != text {
			t.Errorf("%q: got %q, %v", text, out, err)
		}
	}
	if err := s.Client().Call(t.Context(), "ping", json.RawMessage(`{"a":"\ufffd"}`), nil); err != nil {
		t.Errorf("a caller's own JSON: %v", err)
	}
}
