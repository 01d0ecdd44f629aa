package server

import (
	"net"
	"net/http"
	"sync"
	"time"
)

// A crowd bounds the connections of a server. When there is no room, the one that has
// done nothing for the longest time is closed; when all are busy, the new one is (T49).
type crowd struct {
	limit int

	mu    sync.Mutex
	quiet map[net.Conn]time.Time // since when no request is served on it; guarded by mu
	busy  map[net.Conn]bool      // guarded by mu
}

func newCrowd(limit int) *crowd {
	return &crowd{limit: limit, quiet: map[net.Conn]time.Time{}, busy: map[net.Conn]bool{}}
}

// state is an http.Server's ConnState.
func (c *crowd) state(conn net.Conn, s http.ConnState) {
	if victim := c.move(conn, s); victim != nil {
		_ = victim.Close()
	}
}

// move notes what a connection does and returns the one that is to be closed, if any.
func (c *crowd) move(conn net.Conn, s http.ConnState) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.quiet, conn)
	delete(c.busy, conn)
	switch s {
	case http.StateActive:
		c.busy[conn] = true
	case http.StateIdle:
		c.quiet[conn] = time.Now()
	case http.StateNew:
		if len(c.quiet)+len(c.busy) < c.limit {
			c.quiet[conn] = time.Now()
			return nil
		}
		victim := conn
		oldest := time.Now()
		for other, since := range c.quiet {
			if since.Before(oldest) {
				victim, oldest = other, since
			}
		}
		if victim != conn {
			delete(c.quiet, victim)
			c.quiet[conn] = time.Now()
		}
		return victim
	case http.StateClosed, http.StateHijacked:
		// The server knows it no longer.
	}
	return nil
}

// count returns how many connections there are.
func (c *crowd) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.quiet) + len(c.busy)
}
