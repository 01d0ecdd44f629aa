package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"sync"

	"github.com/bouvet-run/bouvet/wire"
)

func prepareWatch(_ context.Context, _ *Server, params json.RawMessage) (stream, error) {
	var p wire.WatchParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if err := checkPath("path", p.Path); err != nil {
		return nil, err
	}
	w, err := newWatcher(p.Path, p.Recursive)
	if err != nil {
		return nil, failed("watch", p.Path, err)
	}
	return func(_ context.Context, conn net.Conn, r io.Reader) { runWatch(w, conn, r) }, nil
}

// runWatch sends events until the host ends the stream or the watched path is
// gone. The queue of events is the kernel's: when the host is slow it overflows,
// and says so.
func runWatch(w *watcher, conn net.Conn, r io.Reader) {
	var host sync.WaitGroup
	host.Go(func() {
		// Whatever comes, it is the end: an end frame, the end of the connection,
		// or what has no place here.
		_, _, _ = wire.NewFrameReader(r).ReadFrame()
		w.close()
	})
	err := w.run(func(e wire.WatchEvent) error { return writeJSONFrame(conn, wire.FrameControl, e) })
	w.close()
	switch {
	case err == nil, errors.Is(err, net.ErrClosed):
		_ = writeEnd(conn, wire.EndFrame{})
	default:
		_ = writeEnd(conn, wire.EndFrame{Error: bare(err).Error()})
	}
	_ = conn.Close()
	host.Wait()
}
