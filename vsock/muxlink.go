package vsock

import (
	"bufio"
	"io"
	"time"

	"github.com/hashicorp/yamux"
)

// A Channel is the one byte stream under a mux: a *net.UnixConn, or an *os.File
// of a pollable device.
type Channel interface {
	io.ReadWriteCloser
	SetDeadline(t time.Time) error
	SetReadDeadline(t time.Time) error
	SetWriteDeadline(t time.Time) error
}

// How many bytes of one stream a guest, and a host, may send ahead of its reader. What
// the host holds for a guest is bounded the more narrowly (T09): 256 KiB is the least
// that yamux has.
const (
	hostWindow  = 256 << 10
	guestWindow = 1 << 20
)

// streamCloseTimeout is how long a stream that the host has closed waits for the
// guest to close it, too. The guest waits for ever: its host is trusted, and may
// be slow to read the end of an output, which a reset would take away.
const streamCloseTimeout = 30 * time.Second

// A muxLink is one yamux session and what stands between it and its channel.
type muxLink struct {
	session *yamux.Session
	guard   *muxGuard
	queue   *sendQueue
	flushed chan struct{} // closed when nothing more is written to the channel
}

// linkConn is the channel as a session sees it.
type linkConn struct {
	*muxGuard
	*sendQueue
	interrupt func()
}

// Close implements io.Closer.
func (c linkConn) Close() error {
	c.interrupt()
	return nil
}

// newMuxLink begins a session on ch, which r reads. interrupt must end all I/O
// on ch.
func newMuxLink(ch io.Writer, r *bufio.Reader, host bool, interrupt func()) (*muxLink, error) {
	l := &muxLink{guard: &muxGuard{r: r, host: host}, queue: newSendQueue(), flushed: make(chan struct{})}
	c := yamux.DefaultConfig()
	// A paused or stopped guest is not a dead one: the driver watches its life. No
	// clock ends a session or fails what waits.
	c.EnableKeepAlive = false
	c.StreamOpenTimeout = 0
	c.StreamCloseTimeout = 0
	c.ConnectionWriteTimeout = 100 * 365 * 24 * time.Hour
	c.MaxStreamWindowSize = guestWindow
	c.LogOutput = io.Discard
	start := yamux.Server
	if host {
		c.StreamCloseTimeout = streamCloseTimeout
		c.MaxStreamWindowSize = hostWindow
		start = yamux.Client
	}
	session, err := start(linkConn{l.guard, l.queue, interrupt}, c)
	if err != nil {
		return nil, err
	}
	l.session = session
	go func() {
		defer close(l.flushed)
		if l.queue.flush(ch) != nil {
			_ = session.Close()
		}
	}()
	return l, nil
}

// close ends the session and returns when nobody uses the channel any more.
func (l *muxLink) close() {
	_ = l.session.Close()
	l.queue.stop()
	<-l.flushed
}
