package proc

import (
	"errors"
	"sync"
)

// MaxFeed is how many bytes may wait for a process to read them before Put waits.
const MaxFeed = 1 << 20

// Errors of Feed.Put.
var (
	// ErrAfterEOF means input after its end.
	ErrAfterEOF = errors.New("stdin data after eof")
	// ErrAborted means that the wait for room was given up.
	ErrAborted = errors.New("input was aborted")
)

// A Feed writes to the standard input of a process from a queue of its own, so
// that a process that does not read holds nobody up until the queue is full.
// Several connections may share it.
type Feed struct {
	p *Process

	mu      sync.Mutex
	queue   [][]byte
	waiting int           // bytes in queue, and in the write under way
	eof     bool          // End has been called
	running bool          // the goroutine is
	dropped bool          // nothing is written any more
	more    chan struct{} // capacity 1: the queue or eof has changed
	room    chan struct{} // closed and renewed when the queue gets shorter
}

// newFeed returns a feed; without stdin the input is at its end from the start.
func newFeed(p *Process) *Feed {
	return &Feed{p: p, eof: p.stdin == nil, more: make(chan struct{}, 1), room: make(chan struct{})}
}

// Put queues data, which it keeps. It waits while MaxFeed bytes are queued, until
// abort is closed. Data for a process that has ended or has closed its input is
// dropped without an error.
func (f *Feed) Put(data []byte, abort <-chan struct{}) error {
	for {
		room, err := f.put(data)
		if room == nil {
			return err
		}
		select {
		case <-room:
		case <-abort:
			return ErrAborted
		}
	}
}

// TryPut is Put without the wait: it reports false when it would have to.
func (f *Feed) TryPut(data []byte) (bool, error) {
	room, err := f.put(data)
	return room == nil, err
}

// put returns the channel that tells of room if there is none.
func (f *Feed) put(data []byte) (room <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(data) == 0 || f.dropped:
	case f.eof:
		return nil, ErrAfterEOF
	case f.waiting >= MaxFeed:
		return f.room, nil
	default:
		f.queue = append(f.queue, data)
		f.waiting += len(data)
		f.run()
	}
	return nil, nil
}

// End ends the input once what is queued has been written. Again, it does nothing.
func (f *Feed) End() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.eof {
		return
	}
	f.eof = true
	f.run()
}

// Pending returns how many bytes are queued.
func (f *Feed) Pending() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waiting
}

// run wakes the goroutine that writes, and starts it first if need be. The caller
// holds f.mu.
func (f *Feed) run() {
	if !f.running && !f.dropped {
		m := f.p.m
		m.mu.Lock()
		if f.p.reaped {
			f.dropped = true
		} else {
			f.running = true
			m.wg.Go(f.write)
		}
		m.mu.Unlock()
	}
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// write ends with the input or with the process.
func (f *Feed) write() {
	for {
		data, end := f.next()
		switch {
		case data != nil:
			_, err := f.p.stdin.Write(data)
			f.written(len(data), err != nil)
		case end:
			_ = f.p.stdin.Close()
			return
		default:
			select {
			case <-f.more:
			case <-f.p.ended:
				f.written(0, true)
				return
			}
		}
	}
}

func (f *Feed) next() (data []byte, end bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.queue) == 0 {
		return nil, f.eof
	}
	data = f.queue[0]
	f.queue[0] = nil
	f.queue = f.queue[1:]
	return data, false
}

// written makes room. When nobody reads any more all that is queued is dropped.
func (f *Feed) written(n int, drop bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting -= n
	if drop {
		f.dropped, f.queue, f.waiting = true, nil, 0
	}
	close(f.room)
	f.room = make(chan struct{})
}
