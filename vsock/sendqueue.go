package vsock

import (
	"io"
	"net"
	"os"
	"slices"
	"sync"
)

// sendQueueRoom is how many bytes wait for the channel before writers have to.
const sendQueueRoom = 256 << 10

// A sendQueue is what a yamux session writes to. It never blocks, because yamux
// waits for a congested channel without regard to deadlines or Close, in Read,
// Write, Close and Open alike: a peer that stops reading its channel would hang
// whoever uses a stream (threat T20). What bounds it is that those who write data
// wait for room first, as long as they like. Its owner runs flush.
type sendQueue struct {
	mu      sync.Mutex
	pending []byte        // guarded by mu
	spare   []byte        // guarded by mu
	busy    int           // bytes being flushed; guarded by mu
	err     error         // guarded by mu
	room    chan struct{} // closed when there is room again, nil while there is; guarded by mu
	wake    chan struct{}
	stopped chan struct{}
}

func newSendQueue() *sendQueue {
	return &sendQueue{wake: make(chan struct{}, 1), stopped: make(chan struct{})}
}

// Write implements io.Writer.
func (q *sendQueue) Write(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil {
		return 0, q.err
	}
	n := len(q.pending)
	q.pending = slices.Grow(q.pending, len(p))[:n+len(p)]
	copyBytes(q.pending[n:], p)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return len(p), nil
}

// await waits for room.
func (q *sendQueue) await(closed, passed <-chan struct{}) error {
	for {
		room := q.full()
		if room == nil {
			return nil
		}
		select {
		case <-room:
		case <-closed:
			return net.ErrClosed
		case <-passed:
			return os.ErrDeadlineExceeded
		}
	}
}

func (q *sendQueue) full() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err != nil || len(q.pending)+q.busy < sendQueueRoom {
		return nil // a failed queue says so to the one who writes
	}
	if q.room == nil {
		q.room = make(chan struct{})
	}
	return q.room
}

// flush moves the queue into w until stop or until w fails, which it returns.
func (q *sendQueue) flush(w io.Writer) error {
	for {
		select {
		case <-q.wake:
		case <-q.stopped:
			return nil
		}
		batch := q.take()
		_, err := w.Write(batch)
		q.flushed(batch, err)
		if err != nil {
			return err
		}
	}
}

func (q *sendQueue) take() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := q.pending
	q.pending, q.spare, q.busy = q.spare[:0], nil, len(batch)
	return batch
}

func (q *sendQueue) flushed(batch []byte, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.spare, q.busy = batch, 0
	if q.err == nil {
		q.err = err
	}
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}

// stop ends flush, once w lets it.
func (q *sendQueue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.err == nil {
		q.err = net.ErrClosed
	}
	if !isClosed(q.stopped) {
		close(q.stopped)
	}
	if q.room != nil {
		close(q.room)
		q.room = nil
	}
}
