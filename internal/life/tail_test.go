package life

import "testing"

// T06, T23: what a guest says is kept in part, and told on one line.
func TestTail(t *testing.T) {
	tl := NewTail(4)
	for _, s := range []string{"a", "bcd", "", "efghijklmnop", "q"} {
		if n, err := tl.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("Write %q: got %d, %v", s, n, err)
		}
	}
	if got := tl.String(); got != "nopq" {
		t.Errorf("got %q, want nopq", got)
	}
	if got := OneLine(" a\x1b[2J\nb\xff "); got != "a; [2J; b?" {
		t.Errorf("got %q", got)
	}
	if got := LastWords("x\nKernel panic - not syncing: y\nCPU: 0\n"); got != "x\nKernel panic - not syncing: y" {
		t.Errorf("got %q", got)
	}
}
