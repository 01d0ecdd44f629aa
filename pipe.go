package bouvet

import (
	"io"
	"sync"
)

// pipeSize is how many bytes a pipe holds, as many as the kernel's.
const pipeSize = 64 << 10

// pipe is a bounded buffer between the goroutine that reads a command's output
// and the caller that consumes it.
type pipe struct {
	mu     sync.Mutex
	change sync.Cond
	buf    []byte // guarded by mu
	ended  error  // why no more is written; guarded by mu
	closed bool   // by the reader; guarded by mu
}

func newPipe() *pipe {
	p := &pipe{}
	p.change.L = &p.mu
	return p
}

// Write implements io.Writer. It waits for room.
func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	written := 0
	for {
		if p.closed || p.ended != nil {
			return written, io.ErrClosedPipe
		}
		if n := min(pipeSize-len(p.buf), len(b)); n > 0 {
			p.buf = append(p.buf, b[:n]...)
			b = b[n:]
			written += n
			p.change.Broadcast()
		}
		if len(b) == 0 {
			return written, nil
		}
		p.change.Wait()
	}
}

// end tells the reader that nothing more will come, because of err.
func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil {
		p.ended = err
	}
	p.change.Broadcast()
}

// Read implements io.Reader.
func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.closed:
			return 0, io.ErrClosedPipe
		case len(p.buf) > 0 || len(b) == 0:
			n := copy(b, p.buf)
			p.buf = p.buf[:copy(p.buf, p.buf[n:])]
			p.change.Broadcast()
			return n, nil
		case p.ended != nil:
			return 0, p.ended
		}
		p.change.Wait()
	}
}

// Close ends reading. A command that still writes is ended by that, as by a
// closed pipe.
func (p *pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.buf = true, nil
	p.change.Broadcast()
	return nil
}
