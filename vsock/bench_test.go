package vsock_test

import (
	"io"
	"net"
	"testing"

	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// BenchmarkThroughput compares a mux stream with the plain socket under it.
func BenchmarkThroughput(b *testing.B) {
	const chunk = 256 << 10
	carry := func(b *testing.B, from, to net.Conn) {
		b.SetBytes(chunk)
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.Copy(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{to})
		}()
		buf := make([]byte, chunk)
		for b.Loop() {
			if _, err := from.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		_ = from.Close()
		<-done
	}
	b.Run("plain", func(b *testing.B) {
		from, to, err := wiretest.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		carry(b, from, to)
		_ = to.Close()
	})
	b.Run("mux", func(b *testing.B) {
		host, guest, err := wiretest.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		l, m := vsock.NewMuxListener(guest), vsock.NewMux(host)
		accepted := make(chan net.Conn, 1)
		go func() {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, len("CONNECT 1\n")))
			_, _ = io.WriteString(c, "OK 1\n")
			accepted <- c
		}()
		c, err := m.Dial(b.Context(), 1)
		if err != nil {
			b.Fatal(err)
		}
		carry(b, <-accepted, c)
		_, _ = m.Close(), l.Close()
	})
}
