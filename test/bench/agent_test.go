package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// bulk is how many bytes the throughput benchmarks move.
const bulk = 256 << 20

// agent starts the real agent on a unix socket of this machine and connects.
func agent(b *testing.B) (*bouvet.AgentClient, vsock.Hybrid) {
	b.Helper()
	path := filepath.Join(b.TempDir(), "agent.sock")
	start(b, exec.Command(binary(b, "bouvet-agent"), "--listen", "unix:"+path, "--log-level", "warn"))
	d := vsock.Hybrid{Path: path}
	c, err := bouvet.Connect(context.Background(), d, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c, d
}

// readLines runs script as a host of the seed's protocol does, without any
// extension, and returns how many bytes it wrote.
func readLines(b *testing.B, d vsock.Hybrid, script string) int64 {
	b.Helper()
	conn, err := d.Dial(context.Background(), wire.PortExec)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	req, err := wire.AppendLine(nil, wire.ExecRequest{Command: []string{"sh", "-c", script}})
	if err == nil {
		_, err = conn.Write(req)
	}
	if err != nil {
		b.Fatal(err)
	}
	r := wire.NewLineReader(conn, wire.MaxExecLine, nil)
	var n int64
	for {
		line, err := r.ReadLine()
		if err != nil {
			b.Fatal(err)
		}
		f, _, err := wire.DecodeStream(line)
		if err != nil {
			b.Fatal(err)
		}
		if f.Type == wire.FrameTypeExit {
			return n
		}
		n += int64(len(f.Data))
	}
}

// counter counts and drops.
type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) { c.n += int64(len(p)); return len(p), nil }

// BenchmarkStdout: 256 MiB of a command's output through the exec stream, binary
// frames and NDJSON, against the same command through a plain pipe.
func BenchmarkStdout(b *testing.B) {
	const script = "head -c 268435456 /dev/zero"
	client, dialer := agent(b)
	once(b, func() {
		var framed, lines, pipe []time.Duration
		for range 7 {
			var out counter
			begin := time.Now()
			ours := client.Command(context.Background(), "sh", "-c", script)
			ours.Stdout = &out
			if err := ours.Run(); err != nil || out.n != bulk {
				b.Fatal(out.n, err)
			}
			framed = append(framed, time.Since(begin))

			begin = time.Now()
			if n := readLines(b, dialer, script); n != bulk {
				b.Fatal(n)
			}
			lines = append(lines, time.Since(begin))

			out = counter{}
			begin = time.Now()
			plain := exec.Command("sh", "-c", script)
			plain.Stdout = &out
			if err := plain.Run(); err != nil || out.n != bulk {
				b.Fatal(out.n, err)
			}
			pipe = append(pipe, time.Since(begin))
		}
		throughput(b, framed, pipe, "pipe")
		b.ReportMetric(mibps(lines), "ndjson-MiB/s")
	})
}

func mibps(d []time.Duration) float64 { return bulk / median(d).Seconds() / (1 << 20) }

func throughput(b *testing.B, ours, peer []time.Duration, peerName string) {
	b.Helper()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(mibps(ours), "ours-MiB/s")
	b.ReportMetric(mibps(peer), peerName+"-MiB/s")
	b.ReportMetric(mibps(ours)/mibps(peer), "ours/"+peerName)
}

// socketCopy is the floor of a transfer: a file's bytes through a unix socket
// into a file or into nothing.
func socketCopy(b *testing.B, dir string, src io.Reader, dst io.Writer) time.Duration {
	b.Helper()
	path := filepath.Join(dir, "floor.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	sent := make(chan error, 1)
	begin := time.Now()
	go func() {
		c, err := net.Dial("unix", path)
		if err == nil {
			// Hidden behind a plain Writer and Reader: what the kernel can do without
			// ever showing the bytes to a program is not what a transfer can do.
			_, err = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{src}, make([]byte, 256<<10))
			_ = c.Close()
		}
		sent <- err
	}()
	c, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{c}, make([]byte, 256<<10))
	_ = c.Close()
	if err != nil || n != bulk {
		b.Fatal(n, err)
	}
	if err := <-sent; err != nil {
		b.Fatal(err)
	}
	return time.Since(begin)
}

// ramDir is a directory in memory, so that no disk is measured.
func ramDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "bouvet-bench-") //nolint:usetesting // TempDir is on a disk.
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// BenchmarkDownload: a file of 256 MiB against its copy over a unix socket.
func BenchmarkDownload(b *testing.B) {
	client, _ := agent(b)
	dir := ramDir(b)
	path := filepath.Join(dir, "big")
	if err := os.WriteFile(path, bytes.Repeat([]byte("0123456789abcdef"), bulk/16), 0o600); err != nil {
		b.Fatal(err)
	}
	once(b, func() {
		var ours, floor []time.Duration
		for range 7 {
			var out counter
			begin := time.Now()
			if _, err := client.Download(context.Background(), path, &out); err != nil || out.n != bulk {
				b.Fatal(out.n, err)
			}
			ours = append(ours, time.Since(begin))
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			floor = append(floor, socketCopy(b, dir, f, &counter{}))
			_ = f.Close()
		}
		throughput(b, ours, floor, "socket")
	})
}

// BenchmarkUpload: 256 MiB into a file against its copy over a unix socket.
func BenchmarkUpload(b *testing.B) {
	client, _ := agent(b)
	dir := ramDir(b)
	data := bytes.Repeat([]byte("0123456789abcdef"), bulk/16)
	once(b, func() {
		var ours, floor []time.Duration
		for i := range 7 {
			begin := time.Now()
			if _, err := client.Upload(context.Background(), filepath.Join(dir, "up"), bytes.NewReader(data), nil); err != nil {
				b.Fatal(err)
			}
			ours = append(ours, time.Since(begin))
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("floor%d", i)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
			if err != nil {
				b.Fatal(err)
			}
			floor = append(floor, socketCopy(b, dir, bytes.NewReader(data), f))
			_ = f.Close()
			_ = os.Remove(f.Name())
		}
		throughput(b, ours, floor, "socket")
	})
}

// BenchmarkAgentSize prints the agent's size: 6 MB at most.
func BenchmarkAgentSize(b *testing.B) {
	info, err := os.Stat(binary(b, "bouvet-agent"))
	if err != nil {
		b.Fatal(err)
	}
	once(b, func() {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(info.Size())/1e6, "MB")
	})
}
