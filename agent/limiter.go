package agent

import (
	"errors"
	"runtime/debug"
	"time"
)

// largeWait bounds how long a large line waits for its turn.
const largeWait = 30 * time.Second

var errBusy = errors.New("too many large requests at once")

// A limiter lets one large line be held at a time, so that many connections
// cannot take more of a small guest's memory than one (wire.Limiter).
type limiter struct {
	slot chan struct{}
	done <-chan struct{} // ends all waiting
}

func newLimiter(done <-chan struct{}) *limiter {
	return &limiter{slot: make(chan struct{}, 1), done: done}
}

// Acquire implements wire.Limiter.
func (l *limiter) Acquire() error {
	select {
	case l.slot <- struct{}{}:
		return nil
	default:
	}
	wait := time.NewTimer(largeWait)
	defer wait.Stop()
	select {
	case l.slot <- struct{}{}:
		return nil
	case <-wait.C:
		return errBusy
	case <-l.done:
		return errClosed
	}
}

// Release implements wire.Limiter.
func (l *limiter) Release() { <-l.slot }

// maxStack bounds the stack of a defect in the log.
const maxStack = 4 << 10

func stack() string {
	b := debug.Stack()
	return string(b[:min(len(b), maxStack)])
}
