package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/bouvet-run/bouvet/image"
)

// redrawEvery bounds how often a progress line changes.
const redrawEvery = 100 * time.Millisecond

// A progressLine shows how a long operation gets on: one line that is redrawn on
// a terminal, else one line a stage.
type progressLine struct {
	w     io.Writer
	live  bool
	width int
	now   func() time.Time

	began time.Time
	stage string
	drawn time.Time
	shown bool
}

func newProgressLine(w io.Writer) *progressLine {
	p := &progressLine{w: w, now: time.Now, began: time.Now(), width: 80}
	if f, ok := asFile(w); ok && isTerminal(f) {
		p.live = true
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			p.width = cols
		}
	}
	return p
}

// event implements image.Progress.
func (p *progressLine) event(e image.Event) {
	now := p.now()
	changed := e.Stage != p.stage
	p.stage = e.Stage
	elapsed := now.Sub(p.began).Round(time.Second)
	text := printable(e.Stage, 200)
	switch {
	case p.live:
		if !changed && now.Sub(p.drawn) < redrawEvery {
			return
		}
		p.drawn, p.shown = now, true
		line := []rune(fmt.Sprintf("bouvet: %s%s (%s)", text, measure(e), elapsed))
		if len(line) >= p.width {
			line = line[:max(p.width-1, 0)]
		}
		writeText(p.w, "\r"+string(line)+"\x1b[K")
	case changed:
		writeText(p.w, fmt.Sprintf("bouvet: %s (%s)\n", text, elapsed))
	}
}

func measure(e image.Event) string {
	var b strings.Builder
	switch {
	case e.Done == 0 && e.Total == 0:
	case e.Unit == "bytes" && e.Total > 0:
		fmt.Fprintf(&b, " %s of %s", humanSize(e.Done), humanSize(e.Total))
	case e.Unit == "bytes":
		fmt.Fprintf(&b, " %s", humanSize(e.Done))
	case e.Total > 0:
		fmt.Fprintf(&b, " %d of %d", e.Done, e.Total)
	default:
		fmt.Fprintf(&b, " %d", e.Done)
	}
	if e.Total > 0 && e.Done <= e.Total {
		fmt.Fprintf(&b, ", %d%%", e.Done*100/e.Total)
	}
	return b.String()
}

// clear removes the line, so that what follows begins at its place.
func (p *progressLine) clear() {
	if p.shown {
		writeText(p.w, "\r\x1b[K")
		p.shown = false
	}
}
