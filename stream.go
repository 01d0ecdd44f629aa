package bouvet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// streamChunk is how many bytes of a bulk stream go into one frame.
const streamChunk = 256 << 10

// stream is a connection to the JSON-RPC port that a method has turned into one
// of binary frames.
type stream struct {
	conn   *rpcConn
	guard  *stallGuard
	buffer *bufio.Reader
	frames *wire.FrameReader
	within bool
}

// openStream sends k and returns its connection. The caller closes it.
func (c *AgentClient) openStream(ctx context.Context, k call, result any) (*stream, error) {
	ctx, cancel := c.bind(ctx)
	defer cancel()
	k.extension = true
	conn, raw, err := c.exchange(ctx, &k)
	if err != nil {
		return nil, c.explain(err)
	}
	if err := wire.Decode(raw, result); err != nil {
		conn.discard()
		return nil, &JSONError{fmt.Errorf("result of %s: %w", k.method, err)}
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		conn.discard()
		return nil, &IOError{err}
	}
	s := &stream{conn: conn}
	s.guard = &stallGuard{conn: conn.Conn, from: conn.lines, stall: c.opts.RPCTimeout, inMessage: func() bool { return s.within }}
	s.buffer = bufio.NewReaderSize(s.guard, wire.ChunkSize)
	s.frames = wire.NewFrameReader(s.buffer)
	return s, nil
}

// next reads a frame. A frame that has begun must end within the RPC timeout; if
// prompt is set, so must the wait for its beginning.
func (s *stream) next(prompt bool) (kind byte, payload []byte, err error) {
	s.within = prompt
	if _, err := s.buffer.Peek(1); err != nil {
		return 0, nil, err
	}
	s.within = true
	return s.frames.ReadFrame()
}

// streamError gives a failed read or write of a stream its kind.
func (c *AgentClient) streamError(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s was given up: %w", what, context.Cause(ctx))
	case errors.Is(err, wire.ErrBadFrame), errors.Is(err, wire.ErrLineTooLong):
		return &JSONError{fmt.Errorf("%s: %w", what, err)}
	case isTimeout(err):
		return &RPCError{Code: codeLocal, Message: msgResponseTimeout}
	}
	return c.explain(&IOError{fmt.Errorf("connection broke in %s: %w", what, brokenOff(err))})
}

// remoteError is the error that the agent put at the end of a stream.
func remoteError(text string) error {
	return &RPCError{Code: wire.CodeInternal, Message: capText(text)}
}

// Download copies a file of any size to w and returns the number of bytes. Part
// of it may have been written when it fails.
func (c *AgentClient) Download(ctx context.Context, path string, w io.Writer) (int64, error) {
	return c.DownloadRange(ctx, path, w, 0, 0)
}

// DownloadRange is Download of at most length bytes from offset on; length 0
// means to the end.
func (c *AgentClient) DownloadRange(ctx context.Context, path string, w io.Writer, offset, length int64) (int64, error) {
	if offset < 0 || length < 0 {
		return 0, fmt.Errorf("cannot download %d bytes at %d: negative", length, offset)
	}
	c.log.LogAttrs(ctx, slog.LevelDebug, "downloading file", guestAttr("path", path))
	p := wire.DownloadParams{Path: path, Offset: uint64(offset), Length: uint64(length)}
	bulk := c.muchToRead(ctx, path, offset, length)
	s, err := c.openStream(ctx, call{method: wire.MethodDownload, params: p, idempotent: true, bulk: bulk}, &wire.Empty{})
	if err != nil {
		return 0, err
	}
	defer s.conn.discard()
	ctx, cancel := c.bind(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, s.conn.close)()
	var total int64
	for {
		kind, payload, err := s.next(true)
		if err != nil {
			return total, c.streamError(ctx, "download", err)
		}
		switch kind {
		case wire.FrameData:
			if length > 0 && total+int64(len(payload)) > length {
				return total, &JSONError{fmt.Errorf("download returned more than the %d bytes asked for", length)}
			}
			n, err := w.Write(payload)
			total += int64(n)
			if err != nil {
				return total, fmt.Errorf("cannot write downloaded bytes: %w", err)
			}
		case wire.FrameEnd:
			var end wire.EndFrame
			if err := wire.Decode(payload, &end); err != nil {
				return total, &JSONError{fmt.Errorf("end of download: %w", err)}
			}
			if end.Error != "" {
				return total, remoteError(end.Error)
			}
			return total, nil
		default:
			return total, &JSONError{fmt.Errorf("frame of kind %d in a download", kind)}
		}
	}
}

// Upload makes or replaces a file with all that r yields, atomically: the bytes
// go into a temporary file beside it, which is renamed when all have arrived and
// removed when anything fails. It returns the number of bytes. A Read of r is not
// interrupted when ctx ends.
func (c *AgentClient) Upload(ctx context.Context, path string, r io.Reader, opts *FileOptions) (int64, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "uploading file", guestAttr("path", path))
	p := wire.UploadParams{Path: path, Mode: opts.unixMode(), User: opts.user()}
	s, err := c.openStream(ctx, call{method: wire.MethodUpload, params: p, bulk: c.muchToWrite(r)}, &wire.Empty{})
	if err != nil {
		return 0, err
	}
	defer s.conn.discard()
	ctx, cancel := c.bind(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, s.conn.close)()

	// The agent may refuse in the middle, and then reads no more: its answer is
	// awaited from the beginning.
	answer := make(chan uploadAnswer, 1)
	go func() {
		answer <- s.uploadEnd()
		// It may stand in a Write that the agent will never make room for.
		_ = s.conn.SetWriteDeadline(time.Unix(1, 0))
	}()
	// Whoever returns closes the connection first, which ends the goroutine.
	sent, sendErr := s.send(r, c.opts.RPCTimeout, answer)
	if sendErr != nil && !errors.Is(sendErr, errAnswered) {
		var local *uploadSourceError
		if errors.As(sendErr, &local) || isTimeout(sendErr) || ctx.Err() != nil {
			s.conn.close()
			<-answer
			if errors.As(sendErr, &local) {
				return sent, local.err
			}
			return sent, c.streamError(ctx, "upload", sendErr)
		}
	}
	late := time.AfterFunc(c.opts.RPCTimeout, s.conn.close)
	received := <-answer
	inTime := late.Stop()
	switch {
	case received.end.Error != "":
		return sent, remoteError(received.end.Error)
	case received.err != nil && !inTime:
		return sent, c.streamError(ctx, "upload", errResponseTimeout{})
	case errors.Is(received.err, ErrJSON):
		return sent, received.err
	case received.err != nil:
		return sent, c.streamError(ctx, "upload", received.err)
	case sendErr != nil || received.end.Size != uint64(sent): //nolint:gosec // sent is not negative.
		return sent, &JSONError{fmt.Errorf("agent claims to have stored %d bytes of %d sent", received.end.Size, sent)}
	}
	return sent, nil
}

type errResponseTimeout struct{}

func (errResponseTimeout) Error() string { return msgResponseTimeout }
func (errResponseTimeout) Timeout() bool { return true }

// uploadSourceError is a failure of the reader that an upload copies from.
type uploadSourceError struct{ err error }

func (e *uploadSourceError) Error() string { return e.err.Error() }

// errAnswered means that the agent answered before it had everything.
var errAnswered = errors.New("agent answered early")

// send copies r into data frames and ends them. Its answer channel is only
// looked at: what is in it stays there.
func (s *stream) send(r io.Reader, stall time.Duration, answer <-chan uploadAnswer) (int64, error) {
	buf := make([]byte, wire.FrameHeaderLen+streamChunk)
	var total int64
	for {
		n, err := io.ReadFull(r, buf[wire.FrameHeaderLen:])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return total, &uploadSourceError{fmt.Errorf("cannot read what to upload: %w", err)}
		}
		if err := s.conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
			return total, err
		}
		// In this order: an answer that comes now lets the deadline pass.
		if len(answer) > 0 {
			return total, errAnswered
		}
		if n > 0 {
			wire.PutFrameHeader(buf, wire.FrameData, n)
			if _, err := s.conn.Write(buf[:wire.FrameHeaderLen+n]); err != nil {
				if len(answer) > 0 {
					err = errAnswered
				}
				return total, err
			}
			total += int64(n)
		}
		if err != nil {
			_, err := s.conn.Write(wire.AppendFrame(nil, wire.FrameEnd, []byte(`{"error":""}`)))
			return total, err
		}
	}
}

// uploadAnswer is how an upload ended: what the agent says, or why it does not.
type uploadAnswer struct {
	end wire.EndFrame
	err error
}

// uploadEnd reads the agent's answer to an upload.
func (s *stream) uploadEnd() (a uploadAnswer) {
	kind, payload, err := s.next(false)
	switch {
	case err != nil:
		a.err = err
	case kind != wire.FrameEnd:
		a.err = &JSONError{fmt.Errorf("frame of kind %d in answer to an upload", kind)}
	default:
		if err := wire.Decode(payload, &a.end); err != nil {
			a.err = &JSONError{fmt.Errorf("end of upload: %w", err)}
		}
	}
	return a
}
