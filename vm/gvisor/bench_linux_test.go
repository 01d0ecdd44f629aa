package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vsock"
)

// BenchmarkCreate compares a machine's creation up to its first answer with a bare
// run of runsc from this binary with the same agent and image, in turns.
func BenchmarkCreate(b *testing.B) {
	d := testDriver(b)
	ctx := context.Background()
	var created, answered, destroyed, bare []time.Duration
	for b.Loop() {
		c := testConfig(b)
		start := time.Now()
		m, err := d.Create(ctx, c)
		if err != nil {
			b.Fatal(err)
		}
		created = append(created, time.Since(start))
		if got, err := ask(ctx, m, "ping"); got != "pong\n" {
			b.Fatal(got, err)
		}
		answered = append(answered, time.Since(start))
		start = time.Now()
		if err := m.Destroy(ctx, 0); err != nil {
			b.Fatal(err)
		}
		destroyed = append(destroyed, time.Since(start))
		bare = append(bare, bareRun(b, d))
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range map[string][]time.Duration{"create": created, "answer": answered, "destroy": destroyed, "bare": bare} {
		b.ReportMetric(millis(all), name+"-ms")
	}
	b.ReportMetric(millis(answered)/millis(bare), "answer/bare")
}

func millis(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}

// bareRun times a plain `runsc run` from its start to the agent's first answer.
func bareRun(b *testing.B, d *Driver) time.Duration {
	b.Helper()
	dir := b.TempDir()
	c := testConfig(b)
	e, g, err := makeEnds(c.ID)
	if err != nil {
		b.Fatal(err)
	}
	if err := writeBundle(dir, makeSpec(&c, d.agent)); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{
		helperName, rootFlag(dir), "--network=none", "--directfs=false", "--ignore-cgroups", "run", "-pass-fd=3:3", "-bundle=" + dir, c.ID,
	}
	cmd.Env = []string{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = g.stdin, e.console, e.console
	cmd.ExtraFiles = []*os.File{g.channel}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	g.close()
	if _, err := e.life.Write([]byte{'\n'}); err != nil {
		b.Fatal(err)
	}
	mux := vsock.NewMux(e.channel)
	m := life.NewMachine(life.Parts{Config: &c, Channel: mux})
	if got, err := ask(context.Background(), m, "ping"); got != "pong\n" {
		b.Fatal(got, err)
	}
	took := time.Since(start)
	_ = mux.Close()
	e.close()
	_ = cmd.Wait() // the agent sees the end of its channel
	return took
}

// BenchmarkIdleMemory measures what an idle machine takes, with 50 running.
func BenchmarkIdleMemory(b *testing.B) {
	d := testDriver(b)
	var all []vm.Machine
	for range 50 {
		m := create(b, d, testConfig(b))
		if _, err := ask(context.Background(), m, "ping"); err != nil {
			b.Fatal(err)
		}
		all = append(all, m)
	}
	for b.Loop() {
		var pss, limit float64
		for _, m := range all {
			for _, pid := range machinePIDs(b, m.(*machine)) {
				pss += field(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"), "Pss:")
			}
			if dirs := d.keeper.Cgroups.Dirs(m.ID()); len(dirs) > 0 {
				data, _ := os.ReadFile(filepath.Join(dirs[0], "memory.usage_in_bytes"))
				n, _ := strconv.ParseFloat(strings.TrimSpace(string(data)), 64)
				limit += n / (1 << 20)
			}
		}
		b.ReportMetric(pss/1024/float64(len(all)), "MiB-PSS")
		b.ReportMetric(limit/float64(len(all)), "MiB-cgroup")
	}
}

func machinePIDs(b *testing.B, m *machine) []int {
	var pids []int
	for _, dir := range m.driver.keeper.Cgroups.Dirs(m.ID())[:1] {
		p, err := cgroup.PIDs(dir)
		if err != nil {
			b.Fatal(err)
		}
		pids = append(pids, p...)
	}
	return pids
}

// field is the number, in KiB, after a key in a file of /proc.
func field(path, key string) float64 {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		var n float64
		if rest, ok := strings.CutPrefix(line, key); ok {
			_, _ = fmt.Sscan(rest, &n)
			return n
		}
	}
	return 0
}

// BenchmarkRestore compares restoring an idle machine up to its first answer with
// creating one, in turns.
func BenchmarkRestore(b *testing.B) {
	d := testDriver(b)
	ctx := context.Background()
	c := savable(b)
	m := create(b, d, c)
	if _, err := ask(ctx, m, "ping"); err != nil {
		b.Fatal(err)
	}
	dir := save(b, m)
	var saved, paused, resumed, restored, created []time.Duration
	timed := func(all *[]time.Duration, do func() error) {
		start := time.Now()
		if err := do(); err != nil {
			b.Fatal(err)
		}
		*all = append(*all, time.Since(start))
	}
	answered := func(all *[]time.Duration, make func() (vm.Machine, error)) {
		var m vm.Machine
		timed(all, func() (err error) {
			if m, err = make(); err == nil {
				_, err = ask(ctx, m, "ping")
			}
			return err
		})
		if err := m.Destroy(ctx, 0); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		again := b.TempDir()
		timed(&paused, func() error { return m.Pause(ctx) })
		timed(&resumed, func() error { return m.Resume(ctx) })
		timed(&saved, func() error { return m.Snapshot(ctx, again) })
		answered(&restored, func() (vm.Machine, error) {
			c.ID = newID()
			return d.Restore(ctx, c, dir)
		})
		answered(&created, func() (vm.Machine, error) {
			c.ID = newID()
			return d.Create(ctx, c)
		})
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range map[string][]time.Duration{"pause": paused, "resume": resumed, "save": saved, "restore": restored, "create": created} {
		b.ReportMetric(millis(all), name+"-ms")
	}
	b.ReportMetric(millis(restored)/millis(created), "restore/create")
}
