package proc

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// An output is our end of a pipe or terminal that a process writes to. While the
// process runs it is an ordinary reader. Once the process has ended it reads what
// was there at that moment and then is at its end, whoever else may still write.
type output struct {
	p *Process
	f *os.File

	mu     sync.Mutex // one reader at a time
	ending bool       // the process has ended and budget is set; guarded by mu
	budget int        // bytes that may still be read; guarded by mu
	err    error      // how it ended; guarded by mu
}

func newOutput(p *Process, f *os.File) *output { return &output{p: p, f: f} }

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// processEnded wakes a reader that waits.
func (o *output) processEnded() { _ = o.f.SetReadDeadline(longAgo) }

// reopenPause is how often a terminal that nobody has open is looked at: its
// process may open it again.
const reopenPause = 50 * time.Millisecond

// Read implements io.Reader.
func (o *output) Read(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	for o.err == nil {
		if o.ending {
			return o.readRest(b)
		}
		n, err := o.f.Read(b)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			o.beginRest()
		case errors.Is(err, syscall.EIO) && o.p.spec.TTY:
			// Nobody has the terminal open: mostly because the process has just ended.
			o.awaitEnd()
		case errors.Is(err, io.EOF):
			o.end(io.EOF)
		default:
			o.end(err)
		}
	}
	return 0, o.err
}

// awaitEnd waits for the end of the process, for a while.
func (o *output) awaitEnd() {
	pause := time.NewTimer(reopenPause)
	defer pause.Stop()
	select {
	case <-o.p.ended:
		o.beginRest()
	case <-pause.C:
	}
}

// Bounds of what is read after the end of the process where the kernel does not
// say how much there is: a pipe as large as it may be made without privilege, and
// what a terminal holds.
const maxRest = 1 << 20

// beginRest fixes how much is still read: what the pipe holds now, so that one
// who goes on writing does not keep us. A terminal does not say it reliably.
func (o *output) beginRest() {
	o.ending, o.budget = true, maxRest
	if o.p.spec.TTY {
		return
	}
	_ = withFD(o.f, func(fd int) error {
		if n, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err == nil {
			o.budget = n
		}
		return nil
	})
}

// readRest reads what is there without waiting.
func (o *output) readRest(b []byte) (int, error) {
	n := 0
	var err error
	if o.budget > 0 {
		cerr := withFD(o.f, func(fd int) error {
			for {
				n, err = unix.Read(fd, b[:min(len(b), o.budget)])
				if !errors.Is(err, unix.EINTR) {
					return nil
				}
			}
		})
		if cerr != nil {
			n, err = 0, cerr
		}
	}
	if n > 0 {
		o.budget -= n
		return n, nil
	}
	switch {
	case o.budget > 0 && err == nil, errors.Is(err, unix.EIO):
		o.end(io.EOF)
	case err == nil, errors.Is(err, unix.EAGAIN):
		o.leave()
	default:
		o.end(err)
	}
	return 0, o.err
}

func (o *output) end(err error) {
	o.err = err
	_ = o.f.Close()
}

// leave ends an output whose other end somebody may still have open. A background
// child is to live on, and must not be killed by SIGPIPE for a line in its log, so
// what it writes is read and dropped. A terminal hangs up, as terminals do.
func (o *output) leave() {
	o.err = io.EOF
	if o.p.spec.TTY {
		_ = o.f.Close()
		return
	}
	o.p.m.drain(o.f)
}

// Close ends reading. A process that goes on writing gets SIGPIPE.
func (o *output) Close() error {
	err := o.f.Close() // first: it wakes a Read, which has the lock
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil
	}
	o.err = os.ErrClosed
	return err
}

// A drain reads what nobody wants any more.
type drain struct{ f *os.File }

func (d *drain) stop() { _ = d.f.Close() }

// drain takes f over and reads it to its end, or until the manager closes.
func (m *Manager) drain(f *os.File) {
	d := &drain{f}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing || f.SetReadDeadline(time.Time{}) != nil {
		d.stop()
		return
	}
	m.drains[d] = struct{}{}
	m.wg.Go(func() {
		buf := make([]byte, 4<<10)
		for {
			if _, err := f.Read(buf); err != nil {
				break
			}
		}
		d.stop()
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.drains, d)
	})
}
