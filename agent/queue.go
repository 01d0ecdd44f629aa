package agent

import (
	"sync"

	"github.com/bouvet-run/bouvet/wire"
)

// Bounds of what is read ahead of a connection's worker.
const (
	maxQueued      = 16
	maxQueuedBytes = 256 << 10
)

// A request waits for its connection's worker.
type request struct {
	wire.Request
	// refusal, if set, is the whole answer: the line was no request.
	refusal *wire.RPCError
	// size is what the request holds in memory, in bytes.
	size int
	// done, if set, is told when the request was answered, and whether the
	// connection now belongs to a stream. The reader waits for it.
	done chan bool
}

// A queue holds requests in the order of their arrival.
type queue struct {
	mu    sync.Mutex
	moved *sync.Cond
	items []request // guarded by mu; the first is being served once taken is set
	taken bool
	bytes int
	ended bool
}

func newQueue() *queue {
	q := &queue{}
	q.moved = sync.NewCond(&q.mu)
	return q
}

// push waits for room and reports false when the queue has ended. What is alone
// in the queue has room, whatever its size.
func (q *queue) push(r request) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.ended && len(q.items) > 0 && (len(q.items) >= maxQueued || q.bytes+r.size > maxQueuedBytes) {
		q.moved.Wait()
	}
	if q.ended {
		return false
	}
	q.items = append(q.items, r)
	q.bytes += r.size
	q.moved.Broadcast()
	return true
}

// next ends the request served last and waits for another; it reports false when
// the queue has ended and is empty.
func (q *queue) next() (request, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.taken {
		q.bytes -= q.items[0].size
		q.items[0] = request{}
		q.items = q.items[1:]
		q.taken = false
		q.moved.Broadcast()
	}
	for len(q.items) == 0 && !q.ended {
		q.moved.Wait()
	}
	if len(q.items) == 0 {
		return request{}, false
	}
	q.taken = true
	return q.items[0], true
}

// end lets no more requests in.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.moved.Broadcast()
}
