package daemon_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm/gvisor"
)

// burst is how many sandboxes are wanted at once.
const burst = 50

// BenchmarkBurst creates many real sandboxes at once, each with one command: with the
// daemon, and with the library alone, which writes nothing down and lets all start at once.
func BenchmarkBurst(b *testing.B) {
	imagetest.Default(b)
	exe := helper(b)
	var p50, p99, alone, memory float64
	for b.Loop() {
		d, closer, err := openReal(b.Context(), gvisor.Name, b.TempDir(), exe)
		if err != nil {
			b.Fatal(err)
		}
		before := rss(b)
		took := atOnce(b, func() error {
			sb, err := d.Create(b.Context(), alice, daemon.CreateOptions{})
			if err != nil {
				return err
			}
			u, err := d.Use(b.Context(), sb.ID)
			if err != nil {
				return err
			}
			return u.Machine.Command(b.Context(), "true").Run()
		})
		p50, p99 = took[len(took)/2].Seconds(), took[len(took)*99/100].Seconds()
		memory = float64(rss(b)-before) / burst / (1 << 20)
		if err := d.Close(b.Context(), daemon.CloseKills); err != nil {
			b.Fatal(err)
		}
		if err := closer(); err != nil {
			b.Fatal(err)
		}
		m, err := local.Open(b.Context(), local.Options{StateDir: os.Getenv("BOUVET_STATE_DIR"), Driver: gvisor.Name, Exe: exe, MaxSandboxes: -1, Defaults: bouvet.Config{MemoryMiB: 64, ConnectTimeout: time.Minute}})
		if err != nil {
			b.Fatal(err)
		}
		took = atOnce(b, func() error {
			s, err := m.CreateSandbox(b.Context(), bouvet.Config{})
			if err != nil {
				return err
			}
			return s.Command(b.Context(), "true").Run()
		})
		alone = took[len(took)*99/100].Seconds()
		if err := m.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(p50, "p50-s")
	b.ReportMetric(p99, "p99-s")
	b.ReportMetric(alone, "library-p99-s")
	b.ReportMetric(p99/alone, "ratio")
	b.ReportMetric(memory, "MiB/sandbox")
}

// atOnce runs do many times at once and returns how long each took, sorted.
func atOnce(b *testing.B, do func() error) []time.Duration {
	b.Helper()
	took := make([]time.Duration, burst)
	var all sync.WaitGroup
	for i := range took {
		all.Go(func() {
			began := time.Now()
			if err := do(); err != nil {
				b.Errorf("number %d: %v", i, err)
			}
			took[i] = time.Since(began)
		})
	}
	all.Wait()
	slices.Sort(took)
	return took
}

// rss is the memory of this process that is not a file's, in bytes.
func rss(b *testing.B) int64 {
	b.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(os.Getpid()), "status"))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatal("no RssAnon")
	return 0
}
