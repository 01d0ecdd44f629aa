package bouvet

import (
	"context"
	"sync"
	"time"
)

// A stopwatch measures the time in which a sandbox is not paused.
type stopwatch struct {
	mu      sync.Mutex
	stopped bool          // guarded by mu
	change  chan struct{} // closed when stopped changes; guarded by mu
}

func newStopwatch() *stopwatch { return &stopwatch{change: make(chan struct{})} }

// set stops it or lets it go on.
func (w *stopwatch) set(stopped bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped != stopped {
		w.stopped = stopped
		close(w.change)
		w.change = make(chan struct{})
	}
}

// sleep returns nil when d has passed by the stopwatch, and ctx's error when that
// ends first.
func (w *stopwatch) sleep(ctx context.Context, d time.Duration) error {
	for {
		w.mu.Lock()
		stopped, change := w.stopped, w.change
		w.mu.Unlock()
		var passed <-chan time.Time
		begin := time.Now()
		if !stopped {
			timer := time.NewTimer(d)
			defer timer.Stop() // at most one for each pause
			passed = timer.C
		}
		select {
		case <-passed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-change:
		}
		if !stopped {
			d -= time.Since(begin)
		}
	}
}
