package proc

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"
)

// An input is the writer of a process's standard input.
type input interface {
	io.WriteCloser
	// processEnded makes writes fail, those that wait too.
	processEnded()
}

// gone is what a write says whose reader is no more.
func gone() error { return &os.PathError{Op: "write", Path: "stdin", Err: syscall.EPIPE} }

// pipeInput is a pipe.
type pipeInput struct {
	f     *os.File
	mu    sync.Mutex
	ended bool // guarded by mu
}

// Write implements io.Writer.
func (i *pipeInput) Write(b []byte) (int, error) {
	n, err := i.f.Write(b)
	if errors.Is(err, os.ErrClosed) {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.ended {
			err = gone()
		}
	}
	return n, err
}

// Close implements io.Closer.
func (i *pipeInput) Close() error {
	if err := i.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

func (i *pipeInput) processEnded() {
	i.mu.Lock()
	i.ended = true
	i.mu.Unlock()
	_ = i.f.Close()
}

// ttyInput is the master of a terminal, which its output reads and closes.
type ttyInput struct {
	f *os.File

	mu     sync.Mutex
	closed bool // guarded by mu
	ended  bool // guarded by mu

	writeMu sync.Mutex
	midLine bool // the last byte did not end a line; guarded by writeMu
}

// Write implements io.Writer.
func (i *ttyInput) Write(b []byte) (int, error) {
	i.writeMu.Lock()
	defer i.writeMu.Unlock()
	if err := i.state(); err != nil {
		return 0, err
	}
	n, err := i.f.Write(b)
	if n > 0 {
		last := b[n-1]
		i.midLine = last != '\n' && last != '\r'
	}
	if err != nil {
		if serr := i.state(); serr != nil {
			err = serr
		}
	}
	return n, err
}

func (i *ttyInput) state() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.ended:
		return gone()
	case i.closed:
		return os.ErrClosed
	default:
		return nil
	}
}

// Close sends the end-of-file character. It waits while the terminal's queue is
// full, until the process has ended at most.
func (i *ttyInput) Close() error {
	i.mu.Lock()
	if i.closed || i.ended {
		i.mu.Unlock()
		return nil
	}
	i.closed = true
	_ = i.f.SetWriteDeadline(longAgo) // a Write that waits gives up
	i.mu.Unlock()

	i.writeMu.Lock()
	defer i.writeMu.Unlock()
	eof, ok := eofCharacter(i.f)
	if !ok {
		return nil
	}
	// In the middle of a line the first one only hands over what there is of it.
	chars := []byte{eof}
	if i.midLine {
		chars = append(chars, eof)
	}
	i.mu.Lock()
	if !i.ended {
		_ = i.f.SetWriteDeadline(time.Time{})
	}
	i.mu.Unlock()
	_, err := i.f.Write(chars)
	if err != nil && i.hasEnded() {
		return nil
	}
	return err
}

func (i *ttyInput) hasEnded() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ended
}

func (i *ttyInput) processEnded() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = true
	_ = i.f.SetWriteDeadline(longAgo)
}
