package qemu

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/vm"
)

// BenchmarkBoot measures from Create to the first answered ping, the round trip of a
// ping and what QEMU then has in memory.
func BenchmarkBoot(b *testing.B) {
	d := testDriver(b, testOptions(b, b.TempDir()))
	image := imagetest.Default(b)
	var boots, created, trips, used []time.Duration
	rss := 0
	for n := 0; b.Loop(); n++ {
		begin := time.Now()
		m, err := d.Create(testContext(b), vm.Config{ID: fmt.Sprintf("benchmark-%04d", n), Image: image, MemoryMiB: 256, VCPUs: 1})
		if err != nil {
			b.Fatal(err)
		}
		created = append(created, time.Since(begin))
		c, err := bouvet.Connect(testContext(b), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
		if err != nil {
			b.Fatal(err)
		}
		boots = append(boots, time.Since(begin))
		used = append(used, cpuTime(b, m))
		for range 50 {
			begin := time.Now()
			if err := c.Ping(testContext(b)); err != nil {
				b.Fatal(err)
			}
			trips = append(trips, time.Since(begin))
		}
		rss = max(rss, residentMiB(b, m.(*machine).process.cmd.Process.Pid))
		_ = c.Close()
		if err := m.Destroy(testContext(b), 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(created), "create-ms")
	b.ReportMetric(ms(boots), "boot-ms")
	b.ReportMetric(ms(used), "boot-cpu-ms")
	b.ReportMetric(ms(trips), "ping-ms")
	b.ReportMetric(float64(rss), "rss-MiB")
}

// ms is the median in milliseconds.
func ms(all []time.Duration) float64 {
	slices.Sort(all)
	return all[len(all)/2].Seconds() * 1000
}

func residentMiB(t testing.TB, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			return kib >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
