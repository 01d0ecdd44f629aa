package e2e

import (
	"bufio"
	"net"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
)

// dial opens a stream to the agent as a host of any kind does.
func dial(t testing.TB, s *bouvet.Sandbox, port uint32) net.Conn {
	t.Helper()
	conn, err := s.Machine().Dial(timed(t), port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// readFrame reads a line of the exec protocol.
func readFrame(t testing.TB, r *bufio.Reader) wire.StreamFrame {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err != nil {
		t.Fatalf("got %q, %v, want a frame", line, err)
	}
	f, _, err := wire.DecodeStream(line)
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return f
}

// frames reads to the end of an exec connection.
func frames(t testing.TB, r *bufio.Reader) (stdout, stderr []byte, exit wire.StreamFrame) {
	t.Helper()
	for {
		switch f := readFrame(t, r); f.Type {
		case wire.FrameTypeStdout:
			stdout = append(stdout, f.Data...)
		case wire.FrameTypeStderr:
			stderr = append(stderr, f.Data...)
		case wire.FrameTypeExit:
			return stdout, stderr, f
		default:
			t.Fatalf("frame of type %q", f.Type)
		}
	}
}
