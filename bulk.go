package bouvet

import (
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

const (
	// bulkSize is what a transfer moves at least that goes by vm.BulkDialer, in bytes:
	// what it costs to begin there is a few milliseconds of an emulated guest.
	bulkSize = 1 << 20
	// bulkTimeout bounds the wait for such a stream. Without it the transfer takes longer.
	bulkTimeout = 5 * time.Second
)

// acquireBulk returns a connection for one transfer, or nil if there is none but
// those that all use.
func (c *AgentClient) acquireBulk(ctx context.Context) *rpcConn {
	d, ok := c.dialer.(vm.BulkDialer)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	raw, err := d.DialBulk(ctx, wire.PortRPC)
	if err != nil {
		c.log.LogAttrs(ctx, slog.LevelDebug, "no stream for bulk", slog.Any("error", err))
		return nil
	}
	conn := c.newConn(raw)
	conn.bulk = true
	return conn
}

func (c *AgentClient) newConn(raw net.Conn) *rpcConn {
	gate := &replyGate{slots: c.large, closed: make(chan struct{})}
	return &rpcConn{Conn: raw, lines: wire.NewLineReader(raw, maxSmallReply, gate), gate: gate}
}

// muchToRead reports whether a download is worth a stream for bulk, if there are such.
func (c *AgentClient) muchToRead(ctx context.Context, path string, offset, length int64) bool {
	if _, ok := c.dialer.(vm.BulkDialer); !ok || length > 0 && length < bulkSize {
		return false
	}
	info, err := c.Stat(ctx, path)
	return err == nil && info.Size >= bulkSize && int64(info.Size)-offset >= bulkSize //nolint:gosec // Stat has checked it.
}

// muchToWrite does the same for an upload of r, as far as r tells. To find out by reading
// would keep the agent's refusal from the user for as long as r takes its time.
func (c *AgentClient) muchToWrite(r io.Reader) bool {
	if _, ok := c.dialer.(vm.BulkDialer); !ok {
		return false
	}
	switch r := r.(type) {
	case interface{ Len() int }: // of packages bytes and strings
		return r.Len() >= bulkSize
	case *os.File:
		info, err := r.Stat()
		return err == nil && info.Mode().IsRegular() && info.Size() >= bulkSize
	}
	return false
}
