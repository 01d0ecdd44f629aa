package vsock

import (
	"sync"
	"time"
)

// A deadline is a moment that can be moved while others wait for it.
type deadline struct {
	mu     sync.Mutex
	timer  *time.Timer
	passed chan struct{} // closed when the moment has come; guarded by mu
}

func newDeadline() *deadline { return &deadline{passed: make(chan struct{})} }

// set moves the deadline to t, which may be past; the zero Time is never.
func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.passed // the timer's function runs, and needs no lock
	}
	d.timer = nil
	struck := isClosed(d.passed)
	wait := time.Until(t)
	switch {
	case t.IsZero() || wait > 0:
		if struck {
			d.passed = make(chan struct{})
		}
		if !t.IsZero() {
			passed := d.passed
			d.timer = time.AfterFunc(wait, func() { close(passed) })
		}
	case !struck:
		close(d.passed)
	}
}

// wait returns a channel that is closed when the deadline has passed.
func (d *deadline) wait() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.passed
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
