package cli

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/image"
)

func TestEscapeKey(t *testing.T) {
	const key = "\x1d"
	for _, tt := range []struct {
		name  string
		reads []string
		step  time.Duration
		want  bool
	}{
		{"three in one read", []string{key + key + key}, 0, true},
		{"three apart", []string{key, key, key}, 300 * time.Millisecond, true},
		{"two", []string{key, key}, 0, false},
		{"too slow", []string{key, key, key}, 600 * time.Millisecond, false},
		{"interrupted", []string{key + key, "x", key}, 0, false},
		{"after others", []string{"text" + key + key, key}, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now, pressed := time.Unix(0, 0), false
			var readers []io.Reader
			for _, r := range tt.reads {
				readers = append(readers, strings.NewReader(r))
			}
			e := &escape{r: io.MultiReader(readers...), pressed: func() { pressed = true }, now: func() time.Time {
				now = now.Add(tt.step)
				return now
			}}
			var b strings.Builder
			if _, err := io.Copy(&b, e); err != nil {
				t.Fatal(err)
			}
			if pressed != tt.want {
				t.Errorf("pressed is %v, want %v", pressed, tt.want)
			}
			if want := strings.Join(tt.reads, ""); b.String() != want {
				t.Errorf("passed on %q, want %q", b.String(), want)
			}
		})
	}
}

func TestProgressLine(t *testing.T) {
	events := []image.Event{
		{Stage: "one"},
		{Stage: "one", Done: 5, Total: 10, Unit: "entries"},
		{Stage: "two \x1b[31m", Done: 1_500_000, Total: 3_000_000, Unit: "bytes"},
	}
	now := time.Unix(0, 0)
	clock := func() time.Time { return now }

	var plain strings.Builder
	p := &progressLine{w: &plain, now: clock, began: now, stop: make(chan struct{}), ended: make(chan struct{})}
	close(p.ended)
	for _, e := range events {
		now = now.Add(time.Second)
		p.event(e)
	}
	p.clear()
	if got, want := plain.String(), "bouvet: one (1s)\nbouvet: two \\x1b[31m (3s)\n"; got != want {
		t.Errorf("in a file: %q, want %q", got, want)
	}

	var live strings.Builder
	now = time.Unix(0, 0)
	p = &progressLine{w: &live, now: clock, began: now, live: true, width: 20, stop: make(chan struct{}), ended: make(chan struct{})}
	close(p.ended)
	for _, e := range events {
		now = now.Add(time.Second)
		p.event(e)
	}
	p.clear()
	want := "\rbouvet: one (1s)\x1b[K\rbouvet: one 5 of 10\x1b[K\rbouvet: two \\x1b[31\x1b[K\r\x1b[K"
	if got := live.String(); got != want {
		t.Errorf("on a terminal: %q, want %q", got, want)
	}
}
