package agent_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
)

// benchBytes is how much output the benchmarks move, and benchCommand what makes it.
const benchBytes = 256 << 20

var benchCommand = []string{"head", "-c", fmt.Sprint(benchBytes), "/dev/zero"}

// BenchmarkPipe is what the others are measured against: the same command through
// a plain pipe.
func BenchmarkPipe(b *testing.B) {
	b.SetBytes(benchBytes)
	buf := make([]byte, 256<<10)
	for b.Loop() {
		cmd := exec.CommandContext(context.Background(), benchCommand[0], benchCommand[1:]...)
		cmd.WaitDelay = time.Second
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		expectBytes(b, out, buf)
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func expectBytes(b *testing.B, r io.Reader, buf []byte) {
	b.Helper()
	total := 0
	for {
		n, err := r.Read(buf)
		total += n
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	if total != benchBytes {
		b.Fatalf("got %d bytes, want %d", total, benchBytes)
	}
}

func benchRequest(b *testing.B, socket, more string) net.Conn {
	b.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	command := `["` + strings.Join(benchCommand, `","`) + `"]`
	if _, err := io.WriteString(conn, "CONNECT 10700\n{\"command\":"+command+more+"}\n"); err != nil {
		b.Fatal(err)
	}
	ok := make([]byte, len("OK 10700\n"))
	if _, err := io.ReadFull(conn, ok); err != nil {
		b.Fatal(err)
	}
	return conn
}

func BenchmarkExecStdoutBinary(b *testing.B) {
	socket := startServer(b, agent.Options{})
	b.SetBytes(benchBytes)
	payload := make([]byte, 1<<20)
	for b.Loop() {
		conn := benchRequest(b, socket, `,"framing":"binary"`)
		r := bufio.NewReaderSize(conn, 256<<10)
		total := 0
		for {
			var h [5]byte
			if _, err := io.ReadFull(r, h[:]); err != nil {
				b.Fatal(err)
			}
			n := int(binary.BigEndian.Uint32(h[1:]))
			if _, err := io.ReadFull(r, payload[:n]); err != nil {
				b.Fatal(err)
			}
			if h[0] == 4 {
				break
			}
			total += n
		}
		_ = conn.Close()
		if total != benchBytes {
			b.Fatalf("got %d bytes, want %d", total, benchBytes)
		}
	}
}

// BenchmarkExecStdoutLines is of the seed's framing; the reader counts the bytes
// and decodes nothing.
func BenchmarkExecStdoutLines(b *testing.B) {
	socket := startServer(b, agent.Options{})
	b.SetBytes(benchBytes)
	buf := make([]byte, 256<<10)
	for b.Loop() {
		conn := benchRequest(b, socket, "")
		total := 0
		for {
			n, err := conn.Read(buf)
			total += n
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
		}
		_ = conn.Close()
		if total < benchBytes/3*4 {
			b.Fatalf("got %d bytes, too few for %d in base64", total, benchBytes)
		}
	}
}

// BenchmarkExecTrue is the latency of the shortest command on a connection of its
// own.
func BenchmarkExecTrue(b *testing.B) {
	socket := startServer(b, agent.Options{})
	for b.Loop() {
		x := execute(b, socket, `{"command":["/bin/true"]}`)
		if f := x.frame(); f.Type != "exit" || f.ExitCode != 0 {
			b.Fatalf("got %+v", f)
		}
		_ = x.Close()
	}
}
