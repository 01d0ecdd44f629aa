package vsock

// The guard tells a stream that its peer has closed it when that frame comes, past
// what the stream holds unread: a host that goes leaves as much as a whole window
// of that, and whoever waits for a process to take it would not hear of it.

// expectHangup begins to watch a stream, from its first frame on.
func (g *muxGuard) expectHangup(id uint32) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.hangups[id]
	if !ok {
		if g.hangups == nil {
			g.hangups = map[uint32]chan struct{}{}
		}
		c = make(chan struct{})
		g.hangups[id] = c
	}
	return c
}

// hangUp notes that the peer has closed a stream.
func (g *muxGuard) hangUp(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c, ok := g.hangups[id]; ok && !isClosed(c) {
		close(c)
	}
}

// forgetHangup ends the watch.
func (g *muxGuard) forgetHangup(id uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.hangups, id)
}

// AwaitHangup does what the function of that name says, also while there is input
// that has not been read. Our peers close a stream in both directions at once.
func (c *muxConn) AwaitHangup() bool {
	select {
	case <-c.hangup:
		return true
	case <-c.link.session.CloseChan():
		return true
	case <-c.closed:
		return false
	case <-c.readBy.wait():
		return false
	}
}
