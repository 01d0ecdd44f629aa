package bench

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/local"
)

func TestMain(m *testing.M) {
	local.Dispatch()
	os.Exit(m.Run())
}

// rounds is how often each side of a comparison is timed.
const rounds = 61

// median of durations, which it sorts.
func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// report prints both medians and ours/peer.
func report(b *testing.B, ours, peer []time.Duration, peerName string) {
	b.Helper()
	o, p := median(ours), median(peer)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(o.Microseconds())/1e3, "ours-ms")
	b.ReportMetric(float64(p.Microseconds())/1e3, peerName+"-ms")
	b.ReportMetric(float64(o)/float64(p), "ours/"+peerName)
}

// once runs f for the first iteration only: each benchmark does its own rounds.
func once(b *testing.B, f func()) {
	b.Helper()
	for i := 0; b.Loop(); i++ {
		if i == 0 {
			f()
		}
	}
}

// manager opens the product as it is, on the real image.
func manager(b *testing.B) *bouvet.Manager {
	b.Helper()
	imagetest.Default(b)
	m, err := local.Open(context.Background(), local.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			b.Error(err)
		}
	})
	return m
}

// create makes a sandbox, or ends the benchmark.
func create(b *testing.B, m *bouvet.Manager, c bouvet.Config) *bouvet.Sandbox {
	b.Helper()
	s, err := m.CreateSandbox(context.Background(), c)
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// binary is a program that `make build` made.
func binary(b *testing.B, name string) string {
	b.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		b.Fatalf("%v; run `make build` first", err)
	}
	return path
}

// start starts a command that ends with the benchmark.
func start(b *testing.B, cmd *exec.Cmd) {
	b.Helper()
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}
