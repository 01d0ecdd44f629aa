package proc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ErrFrozen is returned by Start and Signal between Freeze and Thaw.
var ErrFrozen = errors.New("processes are frozen: thaw the guest first")

// Bounds of a freeze.
const (
	freezeTime = 5 * time.Second // a process that is not stopped by then is in an uninterruptible sleep
	minPause   = time.Millisecond
	maxPause   = 20 * time.Millisecond
	// quietScans is how many scans in a row have to find none running: one that was
	// seen running may have continued another behind the scan's back, then no more.
	quietScans = 2
)

// Freeze stops processes until it finds none running: with Options.Guest all of the
// guest, with Options.Reap all that descend from this program, else the families of
// those that this manager runs. Parents are stopped before children. Which of them
// were stopped before is remembered. Until Thaw none is started or signalled, but
// killed they can be. It returns how many it holds; when it fails, or ctx ends first, all
// go on. To freeze what is frozen is to look again.
func (m *Manager) Freeze(ctx context.Context) (int, error) {
	select {
	case m.freezing <- struct{}{}:
		defer func() { <-m.freezing }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	before := m.hold()
	stopped := maps.Clone(before)
	if stopped == nil {
		stopped = map[int]uint64{}
	}
	if err := m.stopAll(ctx, stopped); err != nil {
		// What was frozen before is to stay so.
		maps.DeleteFunc(stopped, func(pid int, started uint64) bool { return before[pid] == started })
		resume(stopped)
		if before == nil {
			m.release()
		}
		return 0, fmt.Errorf("cannot freeze processes: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = stopped
	return len(stopped), nil
}

// Thaw lets those that Freeze stopped go on, children before parents: a shell that
// controls jobs sees none of its own stopped. Without a Freeze before it does nothing.
func (m *Manager) Thaw() {
	m.freezing <- struct{}{}
	defer func() { <-m.freezing }()
	m.mu.Lock()
	stopped := m.frozen
	m.mu.Unlock()
	if stopped == nil {
		return
	}
	resume(stopped)
	m.release()
}

// Thawed returns a channel that is closed while nothing is frozen.
func (m *Manager) Thawed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.thawed
}

// hold lets no process be started or signalled from now on, and returns what is
// frozen already; nil if nothing is.
func (m *Manager) hold() map[int]uint64 {
	m.spawnMu.Lock() // no fork is under way
	defer m.spawnMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.frozen
	if before == nil {
		m.frozen, m.thawed = map[int]uint64{}, make(chan struct{})
	}
	return before
}

// release undoes hold.
func (m *Manager) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.frozen = nil
	close(m.thawed)
}

// stopAll stops processes until none runs, and adds them to stopped.
func (m *Manager) stopAll(ctx context.Context, stopped map[int]uint64) error {
	late := time.NewTimer(freezeTime)
	defer late.Stop()
	pause, quiet := minPause, 0
	for {
		running := awake(m.members(relatives()))
		if len(running) > 0 {
			quiet = 0
		} else if quiet++; quiet >= quietScans {
			return nil
		}
		stop(running, stopped)
		if len(running) == 0 {
			continue
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxPause)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("process %d does not stop within %v", running[0].pid, freezeTime)
		}
	}
}

// stop stops those processes whose parents stand still already. A parent that waits
// for its child would see it stop otherwise, for a wait looks at the children once
// more before it heeds a signal; and one in a vfork stops only after its child has
// become another program.
func stop(running []relative, stopped map[int]uint64) {
	runs := map[int]bool{}
	for _, r := range running {
		runs[r.pid] = true
		if !runs[r.parent] && unix.Kill(r.pid, unix.SIGSTOP) == nil {
			stopped[r.pid] = r.started
		}
	}
}

// resume continues those processes, children first.
func resume(stopped map[int]uint64) {
	for _, r := range slices.Backward(byDepth(relatives())) {
		if started, ok := stopped[r.pid]; ok && started == r.started {
			_ = unix.Kill(r.pid, unix.SIGCONT)
		}
	}
}

// members chooses those that are to be frozen, parents before children.
func (m *Manager) members(all []relative) []relative {
	all = byDepth(all)
	family := map[int]bool{}
	switch {
	case m.opt.Guest:
		return slices.DeleteFunc(all, func(r relative) bool { return r.kernel })
	case m.opt.Reap:
		family[os.Getpid()] = true
	default:
		m.mu.Lock()
		for pid := range m.byPID {
			family[pid] = true
		}
		m.mu.Unlock()
	}
	roots := maps.Clone(family)
	return slices.DeleteFunc(all, func(r relative) bool {
		if family[r.parent] || roots[r.session] {
			family[r.pid] = true
		}
		return !family[r.pid]
	})
}

// byDepth sorts processes by the number of their ancestors.
func byDepth(all []relative) []relative {
	parent := make(map[int]int, len(all))
	for _, r := range all {
		parent[r.pid] = r.parent
	}
	depth := func(pid int) (n int) {
		// A table that changed while it was read may go round in a circle.
		for at, ok := pid, true; ok && n <= len(all); n++ {
			at, ok = parent[at]
		}
		return n
	}
	depths := make(map[int]int, len(all))
	for _, r := range all {
		depths[r.pid] = depth(r.pid)
	}
	slices.SortStableFunc(all, func(a, b relative) int { return depths[a.pid] - depths[b.pid] })
	return all
}

// awake returns the processes of which a thread runs, or may.
func awake(all []relative) []relative {
	return slices.DeleteFunc(all, func(r relative) bool {
		if r.dead {
			return true
		}
		if r.threads <= 1 {
			return stands(r.state)
		}
		return threadsStand(r.pid)
	})
}

// stands tells a thread that is stopped, by a signal or by a tracer, or that is gone.
func stands(state byte) bool { return state == 'T' || state == 't' || state == 'Z' || state == 'X' }

func threadsStand(pid int) bool {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := os.ReadDir(dir)
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // it is gone
	}
	for _, t := range threads {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/stat")
		if err != nil {
			continue // it has ended, or another look at the process tells
		}
		if r, ok := parseStat(pid, string(b)); !ok || !stands(r.state) {
			return false
		}
	}
	return true
}
