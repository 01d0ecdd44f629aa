package vmtest

import (
	"bufio"
	"context"
	"net"
	"sync"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/wire"
)

// Agent is the Guest that is the real agent, in this process.
func Agent(ctx context.Context, l net.Listener) {
	s := agent.NewServer(agent.Options{Version: "fake"})
	defer func() { _ = s.Close() }()
	_ = s.Serve(ctx, l, 0)
}

// Silent is a Guest that accepts every stream and never says a word.
func Silent(ctx context.Context, l net.Listener) {
	Scripted(func(ctx context.Context, _ net.Conn, _ uint32) { <-ctx.Done() })(ctx, l)
}

// Scripted returns a Guest that acknowledges each CONNECT and then has serve do
// with the stream what it wants, until ctx ends.
func Scripted(serve func(ctx context.Context, conn net.Conn, port uint32)) Guest {
	return func(ctx context.Context, l net.Listener) {
		var streams sync.WaitGroup
		defer streams.Wait()
		defer context.AfterFunc(ctx, func() { _ = l.Close() })()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			streams.Go(func() {
				defer func() { _ = conn.Close() }()
				defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
				if port, ok := acknowledge(conn); ok {
					serve(ctx, conn, port)
				}
			})
		}
	}
}

// acknowledge reads a CONNECT line, which the host sends alone, and answers it.
func acknowledge(conn net.Conn) (port uint32, ok bool) {
	line, err := bufio.NewReader(conn).ReadSlice('\n')
	if err != nil {
		return 0, false
	}
	if port, ok = wire.ParseConnect(line); !ok {
		return 0, false
	}
	_, err = conn.Write([]byte(wire.OKLine(port)))
	return port, err == nil
}
