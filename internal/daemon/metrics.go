package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet"
)

const (
	// sampleEvery is how often a sandbox is looked at that somebody uses, sampleIdle one
	// that nobody does, sampleFirst when it is looked at first.
	sampleFirst = time.Second
	sampleEvery = 5 * time.Second
	sampleIdle  = time.Minute
	// usedLately is for how long somebody uses what was used.
	usedLately = time.Minute
	// maxMetrics is how many samples are kept: an hour's at sampleEvery.
	maxMetrics = 720
	// sampleTimeout bounds a look.
	sampleTimeout = 3 * time.Second
	// diskEvery is how often its disk is looked at, which takes a process.
	diskEvery = 30 * time.Second
	// clockTicks is USER_HZ, the unit of /proc/stat.
	clockTicks = 100
)

// Metrics returns what a sandbox used between two times, the oldest first; a time that is
// zero is no bound. A sandbox that is paused or that nobody uses has few.
func (s *Service) Metrics(_ context.Context, owner Owner, id ID, from, to time.Time) ([]Metric, error) {
	b, err := s.find(owner, id)
	if err != nil {
		return nil, err
	}
	b.touch()
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Metric
	for _, m := range b.metrics {
		if (from.IsZero() || !m.Time.Before(from)) && (to.IsZero() || !m.Time.After(to)) {
			all = append(all, m)
		}
	}
	return all, nil
}

// sample looks at a machine now and then, until it ends.
func (b *box) sample(machine *bouvet.Sandbox) {
	var last look
	timer := time.NewTimer(sampleFirst)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-machine.Done():
			return
		case <-b.s.ctx.Done():
			return
		}
		next, err := b.look(machine, last)
		b.mu.Lock()
		if err == nil {
			last = next
			b.metrics = append(b.metrics, next.metric)
			if len(b.metrics) > maxMetrics {
				b.metrics = append([]Metric(nil), b.metrics[len(b.metrics)-maxMetrics:]...)
			}
		}
		wait := sampleIdle
		if time.Since(b.used) < usedLately {
			wait = sampleEvery
		}
		b.mu.Unlock()
		timer.Reset(wait)
	}
}

// A look is what was seen of a machine.
type look struct {
	metric Metric
	busy   int64 // ticks of all processors
	disk   time.Time
}

// look reads the guest's own account: its bytes may be anything, and are at most numbers.
func (b *box) look(machine *bouvet.Sandbox, last look) (look, error) {
	ctx, cancel := context.WithTimeout(b.s.ctx, sampleTimeout)
	defer cancel()
	client := machine.Client()
	stat, err := client.ReadBytes(ctx, "/proc/stat")
	if err != nil {
		return look{}, err
	}
	info, err := client.ReadBytes(ctx, "/proc/meminfo")
	if err != nil {
		return look{}, err
	}
	now := look{metric: Metric{Time: time.Now(), VCPUs: machine.Config().VCPUs}, busy: busyTicks(stat)}
	m := &now.metric
	memory := kibibytes(info)
	m.MemTotal, m.MemCache = memory["MemTotal"], memory["Cached"]
	m.MemUsed = max(m.MemTotal-memory["MemAvailable"], 0)
	if seconds := m.Time.Sub(last.metric.Time).Seconds(); !last.metric.Time.IsZero() && seconds > 0 {
		used := float64(max(now.busy-last.busy, 0)) / clockTicks / seconds
		m.CPUPercent = min(100*used/float64(max(m.VCPUs, 1)), 100)
	}
	now.disk, m.DiskUsed, m.DiskTotal = last.disk, last.metric.DiskUsed, last.metric.DiskTotal
	if time.Since(now.disk) > diskEvery {
		if used, total, err := diskOf(ctx, machine); err == nil {
			now.disk, m.DiskUsed, m.DiskTotal = m.Time, used, total
		}
	}
	return now, nil
}

// busyTicks reads /proc/stat: how long the processors together did something.
func busyTicks(stat []byte) int64 {
	line, _, _ := bytes.Cut(stat, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return 0
	}
	var busy int64
	for i, f := range fields[1:min(len(fields), 9)] { // the rest are in others
		n, err := strconv.ParseInt(f, 10, 64)
		if idle := i == 3 || i == 4; err == nil && n >= 0 && n < 1<<48 && !idle {
			busy += n
		}
	}
	return busy
}

// kibibytes reads /proc/meminfo, in bytes.
func kibibytes(info []byte) map[string]int64 {
	values := map[string]int64{}
	for line := range strings.Lines(string(info)) {
		key, rest, ok := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if !ok || len(fields) != 2 || fields[1] != "kB" || len(values) >= 256 {
			continue
		}
		if n, err := strconv.ParseInt(fields[0], 10, 64); err == nil && n >= 0 && n < 1<<40 {
			values[key] = n << 10
		}
	}
	return values
}

// diskOf asks the guest for its root file system, in bytes.
func diskOf(ctx context.Context, machine *bouvet.Sandbox) (used, total int64, err error) {
	cmd := machine.Command(ctx, "stat", "-f", "-c", "%S %b %f", "/")
	cmd.OutputLimit = 1 << 10
	out, err := cmd.Output()
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(out))
	if len(fields) != 3 {
		return 0, 0, errors.New("cannot read what stat says of the disk")
	}
	var n [3]int64
	for i, f := range fields {
		if n[i], err = strconv.ParseInt(f, 10, 64); err != nil || n[i] < 0 || n[i] > 1<<50 {
			return 0, 0, fmt.Errorf("cannot read what stat says of the disk: %.40q", f)
		}
	}
	size, blocks, free := n[0], n[1], n[2]
	if size > 1<<20 || blocks > 1<<42 || free > blocks {
		return 0, 0, errors.New("what stat says of the disk cannot be true")
	}
	return size * (blocks - free), size * blocks, nil
}
