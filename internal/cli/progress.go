package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/bouvet-run/bouvet/image"
)

// redrawEvery bounds how often a progress line changes.
const redrawEvery = 100 * time.Millisecond

// A progressLine shows how a long operation gets on: one line that is redrawn on
// a terminal, with a clock that shows that something happens; else one line a
// stage.
type progressLine struct {
	w     io.Writer
	live  bool
	width int
	now   func() time.Time
	began time.Time

	mu    sync.Mutex
	last  image.Event // guarded by mu
	drawn time.Time   // guarded by mu
	shown bool        // guarded by mu

	stop  chan struct{}
	ended chan struct{}
}

// startProgress begins a line; it is to be ended with clear.
func startProgress(w io.Writer) *progressLine {
	p := &progressLine{w: w, now: time.Now, began: time.Now(), width: 80, stop: make(chan struct{}), ended: make(chan struct{})}
	if f, ok := asFile(w); ok && isTerminal(f) {
		p.live = true
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 0 {
			p.width = cols
		}
	}
	go p.tick()
	return p
}

// tick keeps the clock going while a stage tells nothing.
func (p *progressLine) tick() {
	defer close(p.ended)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			p.mu.Lock()
			if p.shown {
				p.draw()
			}
			p.mu.Unlock()
		case <-p.stop:
			return
		}
	}
}

// event implements image.Progress.
func (p *progressLine) event(e image.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := e.Stage != p.last.Stage
	p.last = e
	switch {
	case p.live && (changed || p.now().Sub(p.drawn) >= redrawEvery):
		p.draw()
	case !p.live && changed:
		writeText(p.w, fmt.Sprintf("bouvet: %s (%s)\n", printable(e.Stage, 200), p.elapsed()))
	}
}

// draw draws the line anew. The caller holds mu.
func (p *progressLine) draw() {
	p.drawn, p.shown = p.now(), true
	line := []rune(fmt.Sprintf("bouvet: %s%s (%s)", printable(p.last.Stage, 200), measure(p.last), p.elapsed()))
	if len(line) >= p.width {
		line = line[:max(p.width-1, 0)]
	}
	writeText(p.w, "\r"+string(line)+"\x1b[K")
}

func (p *progressLine) elapsed() time.Duration { return p.now().Sub(p.began).Round(time.Second) }

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

// clear removes the line, so that what follows begins at its place, and ends it.
func (p *progressLine) clear() {
	close(p.stop)
	<-p.ended
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shown {
		writeText(p.w, "\r\x1b[K")
		p.shown = false
	}
}
