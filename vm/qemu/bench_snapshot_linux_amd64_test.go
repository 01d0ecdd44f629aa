package qemu

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// idle makes a machine with an idle agent, saves it, and returns the snapshot and
// the time from Create to the first answered ping.
func idle(b *testing.B, d *Driver, c vm.Config) (dir string, boot time.Duration) {
	b.Helper()
	begin := time.Now()
	m, err := d.Create(testContext(b), c)
	if err != nil {
		b.Fatal(err)
	}
	firstPing(b, m)
	boot = time.Since(begin)
	dir = private(b)
	if err := m.Snapshot(testContext(b), dir); err != nil {
		b.Fatal(err)
	}
	if err := m.Destroy(testContext(b), 0); err != nil {
		b.Fatal(err)
	}
	return dir, boot
}

func firstPing(b *testing.B, m vm.Machine) {
	b.Helper()
	a, err := bouvet.Connect(testContext(b), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	_ = a.Close()
}

// imageKnown is a config whose image need not be read to know its digest, as a
// caller with an image store has it.
func imageKnown(b *testing.B) vm.Config {
	c := newConfig(b)
	c.MemoryMiB, c.ImageDigest = 256, "sha256:"+strings.Repeat("1", 64)
	return c
}

// BenchmarkRestore measures from Restore to the first answered ping, against a cold
// boot of the same. "next" is a restore while another machine of the snapshot runs.
func BenchmarkRestore(b *testing.B) {
	d := testDriver(b, testOptions(b, b.TempDir()))
	var boots, restores, nexts, saves []time.Duration
	for b.Loop() {
		c := imageKnown(b)
		dir, boot := idle(b, d, c)
		boots = append(boots, boot)
		for range 5 {
			var pair []vm.Machine
			for _, times := range []*[]time.Duration{&restores, &nexts} {
				c.ID = newConfig(b).ID
				begin := time.Now()
				m, err := d.Restore(testContext(b), c, dir)
				if err != nil {
					b.Fatal(err)
				}
				firstPing(b, m)
				*times = append(*times, time.Since(begin))
				pair = append(pair, m)
			}
			into := private(b)
			begin := time.Now()
			if err := pair[0].Snapshot(testContext(b), into); err != nil {
				b.Fatal(err)
			}
			saves = append(saves, time.Since(begin))
			for _, m := range pair {
				if err := m.Destroy(testContext(b), 0); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(boots), "boot-ms")
	b.ReportMetric(ms(restores), "restore-ms")
	b.ReportMetric(ms(nexts), "next-ms")
	b.ReportMetric(ms(saves), "save-ms")
	b.ReportMetric(ms(restores)/ms(boots), "restore/boot")
}

// BenchmarkClones measures what ten machines of one snapshot have in memory beyond
// the first, each page divided among those that share it, against as many copies of
// a machine that was booted.
func BenchmarkClones(b *testing.B) {
	const clones = 10
	d := testDriver(b, testOptions(b, b.TempDir()))
	var one, all, first int
	for b.Loop() {
		c := imageKnown(b)
		m, err := d.Create(testContext(b), c)
		if err != nil {
			b.Fatal(err)
		}
		firstPing(b, m)
		one = proportionalKiB(b, m)
		dir := private(b)
		if err := m.Snapshot(testContext(b), dir); err != nil {
			b.Fatal(err)
		}
		if err := m.Destroy(testContext(b), 0); err != nil {
			b.Fatal(err)
		}
		var running []vm.Machine
		for range clones {
			c.ID = newConfig(b).ID
			m, err := d.Restore(testContext(b), c, dir)
			if err != nil {
				b.Fatal(err)
			}
			firstPing(b, m)
			if running = append(running, m); len(running) == 1 {
				first = proportionalKiB(b, m)
			}
		}
		all = 0
		for _, m := range running {
			all += proportionalKiB(b, m)
		}
		for _, m := range running {
			if err := m.Destroy(testContext(b), 0); err != nil {
				b.Fatal(err)
			}
		}
	}
	more := float64(all-first) / (clones - 1)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(one)/1024, "booted-MiB")
	b.ReportMetric(float64(first)/1024, "first-MiB")
	b.ReportMetric(more/1024, "more-MiB")
	b.ReportMetric(more/float64(one), "more/booted")
}

// proportionalKiB is what QEMU has in memory, of shared pages its part.
func proportionalKiB(b *testing.B, m vm.Machine) int {
	b.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", m.(*machine).process.cmd.Process.Pid))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var kib int
		if _, err := fmt.Sscanf(lines.Text(), "Pss: %d kB", &kib); err == nil {
			return kib
		}
	}
	b.Fatal("no Pss")
	return 0
}
