package vsock_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// A stream that its peer closes, that has bytes to read, and that is closed under its
// reader: each ends.
func TestMuxCloseUnderRead(t *testing.T) {
	data := make([]byte, 160<<10) // more than makes a reader tell the peer of room
	m := newMux(t, func(c net.Conn, _ uint32) {
		_, _ = c.Write(data)
		_ = c.Close()
	})
	const rounds, atOnce = 60, 8
	over := result(func() error {
		var wg sync.WaitGroup
		for range atOnce {
			wg.Go(func() {
				for range rounds {
					c := dial(t, m)
					first := make(chan struct{})
					var reading sync.WaitGroup
					reading.Go(func() {
						_, _ = io.ReadFull(c, make([]byte, 1))
						close(first)
						_, _ = io.Copy(io.Discard, c)
					})
					<-first
					_ = c.Close()
					reading.Wait()
				}
			})
		}
		wg.Wait()
		return nil
	})
	if err := soon(t, "the end of all streams", over); err != nil {
		t.Error(err)
	}
}
