package proc

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A relative is a line of /proc about a process.
type relative struct {
	pid, parent, group, session int
	started                     uint64 // tells it from a later one of the same number
	dead                        bool   // a zombie without threads
	state                       byte   // of its first thread, as proc_pid_stat(5) has it
	threads                     int
	kernel                      bool // a thread of the kernel
}

// kernelThread is PF_KTHREAD, a flag of proc_pid_stat(5).
const kernelThread = 0x00200000

// Bounds of a kill: after so many looks a process that is still there is in an
// uninterruptible sleep.
const (
	maxKillRounds = 500
	killPause     = 4 * time.Millisecond
)

// Kill ends the process and everything it started: its process group, its session
// and its descendants, those that left the session too, as far as their parents
// live. It returns when they are gone, or at least the signal has been sent and
// two seconds have passed. Of a process that has ended it kills nothing: its
// background children live on.
func (p *Process) Kill() {
	p.killMu.Lock()
	defer p.killMu.Unlock()
	started, ok := p.stop()
	if !ok {
		return
	}
	p.killFamily(map[int]uint64{p.pid: started})
}

// killFamily ends the known and all that they started. The caller holds killMu.
func (p *Process) killFamily(known map[int]uint64) {
	family := p.freeze(known)
	// Even if the process has ended meanwhile: what has been stopped must not stay so.
	_ = p.kill(unix.SIGKILL, true)
	ended := p.ended // most families are done when their first process is
	for range maxKillRounds {
		for _, r := range family {
			_ = unix.Kill(r.pid, unix.SIGKILL)
		}
		select {
		case <-ended:
			ended = nil
		case <-time.After(killPause):
		}
		if family = p.extend(known); len(family) == 0 {
			break
		}
	}
}

// stop stops the process group and tells when the process was started. It reports
// false if it has ended. Under m.mu it cannot be reaped, so that its number is its
// own.
func (p *Process) stop() (started uint64, ok bool) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.reaped {
		return 0, false
	}
	self, _ := readRelative(p.pid)
	_ = unix.Kill(-p.pid, unix.SIGSTOP)
	return self.started, true
}

// freeze stops the whole family and returns its living. What is stopped cannot
// fork, and cannot die and so cut the line to its children, before all of them have
// been found.
func (p *Process) freeze(known map[int]uint64) (family []relative) {
	for range maxKillRounds {
		before := len(known)
		if family = p.extend(known); len(known) == before {
			break
		}
		for _, r := range family {
			_ = unix.Kill(r.pid, unix.SIGSTOP)
		}
	}
	return family
}

// extend adds to the known members of the family those that are not among them yet
// and returns all who live.
func (p *Process) extend(known map[int]uint64) []relative {
	all := relatives()
	now := make(map[int]uint64, len(all))
	for _, r := range all {
		now[r.pid] = r.started
	}
	// A number is only what it was while the process that had it is there.
	same := func(pid int) bool {
		started, ok := known[pid]
		return ok && now[pid] == started
	}
	leader, there := now[p.pid]
	own := !there || leader == known[p.pid]
	in := func(r relative) bool {
		return same(r.pid) || same(r.parent) || own && (r.session == p.pid || r.group == p.pid)
	}
	var alive []relative
	seen := make([]bool, len(all))
	for found := true; found; {
		found = false
		for i, r := range all {
			if seen[i] || r.dead || !in(r) {
				continue
			}
			seen[i], found = true, true
			known[r.pid] = r.started
			alive = append(alive, r)
		}
	}
	return alive
}

// relatives reads the process table.
func relatives() []relative {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	self := os.Getpid()
	var all []relative
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self || pid == 1 {
			continue
		}
		if r, ok := readRelative(pid); ok {
			all = append(all, r)
		}
	}
	return all
}

func readRelative(pid int) (relative, bool) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return relative{}, false
	}
	return parseStat(pid, string(b))
}

// parseStat reads proc_pid_stat(5). The program's name, in parentheses, may itself
// hold anything.
func parseStat(pid int, stat string) (relative, bool) {
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return relative{}, false
	}
	f := strings.Fields(stat[i+1:]) // from field 3 on
	if len(f) < 20 {
		return relative{}, false
	}
	r := relative{pid: pid, state: f[0][0]}
	for _, n := range []struct {
		to   *int
		from string
	}{{&r.parent, f[1]}, {&r.group, f[2]}, {&r.session, f[3]}, {&r.threads, f[17]}} {
		v, err := strconv.Atoi(n.from)
		if err != nil {
			return relative{}, false
		}
		*n.to = v
	}
	var err error
	if r.started, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return relative{}, false
	}
	flags, err := strconv.ParseUint(f[6], 10, 64)
	r.kernel = err == nil && flags&kernelThread != 0
	// A process whose first thread has ended looks like a zombie, too.
	r.dead = (f[0] == "Z" || f[0] == "X") && r.threads <= 1
	return r, true
}
