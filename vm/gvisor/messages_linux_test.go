package gvisor

import (
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/internal/life"
)

// T06, T23: what a sandbox says is kept in part, and told on one line.
func TestMessages(t *testing.T) {
	long := strings.Repeat("x", 3*tailSize)
	for _, tt := range []struct {
		name   string
		writes []string
		want   string
	}{
		{"nothing", nil, ""},
		{"records", []string{`{"msg":"first","level":"error"}`, `{"msg":"second"}` + "\n"}, "first; second"},
		{"not records", []string{"plain\ntext\x1b[31m\u202e"}, "plain; text; [31m"},
		{"invalid UTF-8", []string{"a\xff\xfeb"}, "a?b"},
		{"cut record", []string{`{"msg":"whole"}{"msg":"cu`}, "whole"},
		{"flood", []string{long, "end"}, "..." + strings.Repeat("x", 1497) + "end"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := life.NewTail(tailSize)
			for _, w := range tt.writes {
				if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
					t.Fatalf("Write: got %d, %v", n, err)
				}
			}
			if n := len(l.String()); n > tailSize {
				t.Errorf("kept %d bytes, want at most %d", n, tailSize)
			}
			if got := messages(l.String()); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
