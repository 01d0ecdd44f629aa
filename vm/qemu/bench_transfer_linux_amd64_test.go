package qemu

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
)

// bulk is how many bytes a transfer moves.
const bulk = 64 << 20

// BenchmarkTransfer: a file of 64 MiB into the guest and out of it, against the same
// bytes through a second virtio-serial port of the same machine, where dd reads them
// into a file and writes them from it.
func BenchmarkTransfer(b *testing.B) {
	d := emulated(b)
	socket := filepath.Join(b.TempDir(), "raw.sock")
	d.program = script(b, `exec `+d.program+` "$@" -device virtio-serial-device,id=raw -chardev socket,id=raw,path=`+socket+
		`,server=on,wait=off -device virtserialport,bus=raw.0,chardev=raw,name=raw`)
	// QEMU makes the socket there as a user of its own.
	for dir, mode := filepath.Dir(socket), os.FileMode(0o777); dir != os.TempDir() && dir != "/"; dir, mode = filepath.Dir(dir), 0o755 {
		if err := os.Chmod(dir, mode); err != nil {
			b.Fatal(err)
		}
	}
	client := guestOf(b, d)
	raw, err := net.Dial("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = raw.Close() }()
	port := rawPort(b, client)
	data := bytes.Repeat([]byte("0123456789abcdef"), bulk/16)
	once(b, func() {
		var in, rawIn, out, rawOut []time.Duration
		for range 7 {
			begin := time.Now()
			if _, err := client.Upload(testContext(b), "/tmp/file", bytes.NewReader(data), nil); err != nil {
				b.Fatal(err)
			}
			in = append(in, time.Since(begin))
			rawIn = append(rawIn, rawInto(b, client, raw, port, data))
			begin = time.Now()
			if n, err := client.Download(testContext(b), "/tmp/file", io.Discard); err != nil || n != bulk {
				b.Fatal(n, err)
			}
			out = append(out, time.Since(begin))
			rawOut = append(rawOut, rawOutOf(b, client, raw, port))
		}
		for _, r := range []struct {
			name      string
			ours, raw []time.Duration
		}{{"in", in, rawIn}, {"out", out, rawOut}} {
			const mib = bulk >> 20
			b.ReportMetric(mib/ms(r.ours)*1000, r.name+"-MiB/s")
			b.ReportMetric(mib/ms(r.raw)*1000, "raw-"+r.name+"-MiB/s")
			b.ReportMetric(ms(r.raw)/ms(r.ours), r.name+"/raw")
		}
	})
}

// rawPort is the device of the second port in the guest.
func rawPort(b *testing.B, client *bouvet.AgentClient) string {
	b.Helper()
	find := `for p in /sys/class/virtio-ports/*; do [ "$(cat $p/name)" != raw ] || echo /dev/${p##*/}; done`
	out, err := client.Command(testContext(b), "sh", "-c", find).Output()
	port := strings.TrimSpace(string(out))
	if err != nil || !strings.HasPrefix(port, "/dev/vport") {
		b.Fatalf("got %q, %v, want the device of the raw port", out, err)
	}
	return port
}

// rawInto times data on its way into a file.
func rawInto(b *testing.B, client *bouvet.AgentClient, raw io.Writer, port string, data []byte) time.Duration {
	b.Helper()
	cmd := client.Command(context.Background(), "sh", "-c",
		fmt.Sprintf("echo ready; dd if=%s of=/tmp/raw bs=256k iflag=fullblock count=%d status=none; echo done", port, bulk/(256<<10)))
	said, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	word(b, said, "ready\n")
	begin := time.Now()
	if _, err := raw.Write(data); err != nil {
		b.Fatal(err)
	}
	word(b, said, "done\n")
	took := time.Since(begin)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return took
}

// rawOutOf times the file's bytes from their first to their last.
func rawOutOf(b *testing.B, client *bouvet.AgentClient, raw io.Reader, port string) time.Duration {
	b.Helper()
	cmd := client.Command(context.Background(), "dd", "if=/tmp/raw", "of="+port, "bs=256k", "status=none")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	word(b, raw, "0")
	begin := time.Now()
	if _, err := io.CopyN(io.Discard, raw, bulk-1); err != nil {
		b.Fatal(err)
	}
	took := time.Since(begin)
	if err := cmd.Wait(); err != nil {
		b.Fatal(err)
	}
	return took
}

func word(b *testing.B, r io.Reader, want string) {
	b.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(r, got); err != nil || string(got) != want {
		b.Fatalf("got %q, %v, want %q", got, err, want)
	}
}
