package bouvet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/bouvet-run/bouvet/wire"
)

// A Watcher tells of changes below a directory of the guest.
type Watcher struct {
	client *AgentClient
	events chan WatchEvent
	stream *stream
	unbind func() bool
	closed chan struct{} // closed by Close
	once   sync.Once
	err    error // set before events is closed
}

// Watch begins to watch a directory, with those below it if recursive is set.
// ctx bounds the call alone; the Watcher lives until Close, or until the
// directory or the sandbox is gone.
func (c *AgentClient) Watch(ctx context.Context, path string, recursive bool) (*Watcher, error) {
	s, err := c.openStream(ctx, call{method: wire.MethodWatch, params: wire.WatchParams{Path: path, Recursive: recursive}}, &wire.Empty{})
	if err != nil {
		return nil, err
	}
	w := &Watcher{client: c, events: make(chan WatchEvent), stream: s, closed: make(chan struct{})}
	w.unbind = context.AfterFunc(c.life, s.conn.close) //nolint:contextcheck // ctx bounds the call, not the watch.
	go w.run(c.life)                                   //nolint:contextcheck // the same
	return w, nil
}

// Events returns the channel of changes. It is closed when the watch has ended.
// A reader that falls behind loses events, and is told so by one whose Op is
// wire.WatchOverflow.
func (w *Watcher) Events() <-chan WatchEvent { return w.events }

// Err says why the watch ended, once Events is closed: nil after Close.
func (w *Watcher) Err() error { return w.err }

// Close ends the watch. It is idempotent, and returns when Events is closed.
func (w *Watcher) Close() error {
	w.once.Do(func() {
		close(w.closed)
		w.stream.conn.close()
	})
	for range w.events { // what nobody read is dropped
	}
	return nil
}

func (w *Watcher) run(life context.Context) {
	err := w.receive(life)
	if w.isClosed() {
		err = nil
	}
	w.err = err
	w.unbind()
	w.stream.conn.discard()
	close(w.events)
}

func (w *Watcher) isClosed() bool {
	select {
	case <-w.closed:
		return true
	default:
		return false
	}
}

var watchOps = []string{wire.WatchCreate, wire.WatchWrite, wire.WatchRemove, wire.WatchRename, wire.WatchChmod, wire.WatchOverflow}

func (w *Watcher) receive(life context.Context) error {
	for {
		kind, payload, err := w.stream.next(false)
		if err != nil {
			if w.isClosed() {
				return nil
			}
			return w.client.streamError(life, "watch", err)
		}
		var event WatchEvent
		switch kind {
		case wire.FrameControl:
			if err := wire.Decode(payload, &event); err != nil {
				return &JSONError{fmt.Errorf("watch event: %w", err)}
			}
		case wire.FrameEnd:
			var end wire.EndFrame
			if err := wire.Decode(payload, &end); err != nil {
				return &JSONError{fmt.Errorf("end of watch: %w", err)}
			}
			if end.Error != "" {
				return remoteError(end.Error)
			}
			return nil
		default:
			return &JSONError{fmt.Errorf("frame of kind %d in a watch", kind)}
		}
		if err := checkEvent(event); err != nil {
			return err
		}
		select {
		case w.events <- event:
		case <-w.closed:
			return nil
		case <-life.Done():
			return w.client.streamError(life, "watch", context.Cause(life))
		}
	}
}

// checkEvent refuses names that lead out of the watched directory (threat T21).
func checkEvent(e WatchEvent) error {
	if !slices.Contains(watchOps, e.Op) {
		return &JSONError{fmt.Errorf("watch event has operation %.20q", e.Op)}
	}
	if strings.HasPrefix(e.Name, "/") || strings.IndexByte(e.Name, 0) >= 0 || slices.Contains(strings.Split(e.Name, "/"), "..") {
		return &JSONError{errors.New("watch event names a file outside the watched directory")}
	}
	return nil
}
