package bouvet

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// control sends one frame that is not data.
func (s *session) control(f wire.InputFrame) error {
	line, err := wire.AppendLine(nil, f)
	if err != nil {
		return &JSONError{err}
	}
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	if f.Type == wire.FrameTypeEOF {
		if s.sentEOF {
			return nil
		}
		s.sentEOF = true
	}
	if s.binary {
		line = wire.AppendFrame(s.sendBuf[:0], wire.FrameControl, line[:len(line)-1])
	}
	return s.writeLocked(line)
}

// data sends bytes for the command's standard input, in frames of bounded size.
func (s *session) data(p []byte) (int, error) {
	s.sendMu.Lock()
	defer s.sendMu.Unlock()
	written := 0
	for len(p) > 0 {
		if s.sentEOF {
			return written, io.ErrClosedPipe
		}
		chunk := p[:min(len(p), wire.ChunkSize)]
		if s.binary {
			s.sendBuf = wire.AppendFrame(s.sendBuf[:0], wire.FrameStdin, chunk)
		} else {
			s.sendBuf = wire.AppendDataFrame(s.sendBuf[:0], wire.FrameTypeStdin, chunk)
		}
		if err := s.writeLocked(s.sendBuf); err != nil {
			return written, err
		}
		written += len(chunk)
		p = p[len(chunk):]
	}
	return written, nil
}

// writeLocked is called with sendMu held. It waits while the agent does not
// read; the end of the session ends it.
func (s *session) writeLocked(b []byte) error {
	if _, err := s.conn.Write(b); err != nil {
		if s.ctx.Err() != nil {
			return io.ErrClosedPipe
		}
		return &IOError{fmt.Errorf("cannot send to command: %w", err)}
	}
	return nil
}

// startStdin has a goroutine copy r to the command until r or the command ends.
func (s *session) startStdin(r io.Reader) {
	s.stdinDone = make(chan struct{})
	deadline, _ := r.(interface{ SetReadDeadline(t time.Time) error })
	s.interrupt = func() {
		if deadline == nil || deadline.SetReadDeadline(time.Unix(1, 0)) != nil {
			return
		}
		<-s.stdinDone
		_ = deadline.SetReadDeadline(time.Time{})
	}
	go func() {
		defer close(s.stdinDone)
		buf := make([]byte, wire.ChunkSize)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				if _, err := s.data(buf[:n]); err != nil {
					return // the command has ended, or reads no more
				}
			}
			if err == nil {
				continue
			}
			// Past the end of the command nobody cares how the input ended.
			if !errors.Is(err, io.EOF) && s.ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				s.sendMu.Lock()
				s.stdinErr = fmt.Errorf("cannot read command's input: %w", err)
				s.sendMu.Unlock()
			}
			_ = s.control(wire.InputFrame{Type: wire.FrameTypeEOF})
			return
		}
	}()
}

// stdinPipe is what StdinPipe returns.
type stdinPipe struct {
	cmd       *Cmd
	session   *session // set by Start
	closeOnce sync.Once
}

// Write implements io.Writer. It waits while the command does not read, and
// fails once the command has ended.
func (p *stdinPipe) Write(b []byte) (int, error) {
	if p.session == nil {
		return 0, errors.New("cannot write to command: not started")
	}
	return p.session.data(b)
}

// Close ends the command's input. It is idempotent.
func (p *stdinPipe) Close() error {
	if p.session == nil {
		return errors.New("cannot close command's input: not started")
	}
	var err error
	p.closeOnce.Do(func() {
		if err = p.session.control(wire.InputFrame{Type: wire.FrameTypeEOF}); errors.Is(err, io.ErrClosedPipe) {
			err = nil
		}
	})
	return err
}
