package daemon

import "sync"

// A crew is what runs in the background, until it is closed.
type crew struct {
	mu     sync.Mutex
	closed bool // guarded by mu
	all    sync.WaitGroup
}

// run runs f in the background. It reports false if the crew is closed: then f does not
// run.
func (c *crew) run(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.all.Go(f)
	}
	return !c.closed
}

// close waits for what runs, and lets nothing more in.
func (c *crew) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.all.Wait()
}
