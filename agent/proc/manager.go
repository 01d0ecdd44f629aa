package proc

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Defaults of Options.
const (
	DefaultKeepEnded = 60 * time.Second
	DefaultMaxEnded  = 256
)

// Options are the parts of a Manager. The zero value is useful.
type Options struct {
	// Reap makes the manager wait for every child of this program, for the init of
	// a guest and for a subreaper. No other part of the program may then wait for
	// children itself, os/exec included.
	Reap bool
	// Guest says that this program has its machine, or its sandbox, for itself: Freeze
	// stops every process but this one, and the kernel's log is about its processes.
	Guest bool
	// OOMProtect asks the kernel to spare this program, not its children, when
	// memory runs out. Where that is not allowed nothing happens.
	OOMProtect bool
	// Log receives what goes wrong; nil means nowhere.
	Log *slog.Logger
	// KeepEnded is how long a detached process is remembered after its end;
	// DefaultKeepEnded when 0.
	KeepEnded time.Duration
	// MaxEnded bounds how many ended processes are remembered, the oldest are
	// forgotten first; DefaultMaxEnded when 0.
	MaxEnded int
}

// ErrClosed is returned by Start once the manager has been closed.
var ErrClosed = errors.New("process manager is closed")

// A Manager starts processes and knows those that run. Its methods are safe for
// concurrent use.
type Manager struct {
	log   *slog.Logger
	opt   Options
	oom   *oomShield
	kills *oomLog       // guarded by mu
	wake  chan struct{} // tells the reaper to look
	done  chan struct{} // closed when Close has ended all processes
	wg    sync.WaitGroup

	// spawnMu is held from fork to registration and by a reaper that waits for any
	// child, so that no child is reaped before it is known. It is taken before mu.
	spawnMu sync.Mutex

	freezing chan struct{} // a mutex: one Freeze or Thaw at a time

	mu      sync.Mutex
	frozen  map[int]uint64   // those that Freeze stopped, and when they were started; nil when not frozen; guarded by mu
	thawed  chan struct{}    // closed while frozen is nil; guarded by mu
	closing bool             // guarded by mu
	order   uint64           // of the last process started; guarded by mu
	byPID   map[int]*Process // those not reaped; guarded by mu
	byID    map[string]*Process
	ended   []*Process          // detached ones that are remembered, oldest first; guarded by mu
	drains  map[*drain]struct{} // guarded by mu
	hubs    map[*Hub]struct{}   // those still written to; guarded by mu
}

// NewManager returns a manager that runs nothing yet. It prepares this program for
// children: their umask is 022, and no descriptor beyond the first three is
// inherited, not even one that this program itself inherited.
func NewManager(o Options) *Manager {
	if o.KeepEnded == 0 {
		o.KeepEnded = DefaultKeepEnded
	}
	if o.MaxEnded == 0 {
		o.MaxEnded = DefaultMaxEnded
	}
	m := &Manager{
		log: o.Log, opt: o, wake: make(chan struct{}, 1), done: make(chan struct{}),
		freezing: make(chan struct{}, 1), thawed: make(chan struct{}),
		byPID: map[int]*Process{}, byID: map[string]*Process{}, drains: map[*drain]struct{}{}, hubs: map[*Hub]struct{}{},
	}
	close(m.thawed)
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if o.OOMProtect {
		m.oom = newOOMShield()
	}
	if o.Guest {
		m.kills = newOOMLog()
	}
	unix.Umask(0o022)
	childrenGetDefaultSignals()
	childrenGetNoDescriptors()
	// Before the first child, so that no end is missed.
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, unix.SIGCHLD)
	m.wg.Go(func() {
		defer signal.Stop(ends)
		m.reap(ends)
	})
	return m
}

// Start runs a program. Its errors have the texts of os/exec, without what
// os/exec adds around them.
func (m *Manager) Start(s Spec) (*Process, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	p, err := newProcess(m, s)
	if err != nil {
		return nil, err
	}
	if err := m.spawn(p); err != nil {
		p.closeFiles()
		return nil, err
	}
	m.kick() // it may have ended before it was known
	return p, nil
}

// spawn forks and registers p as one step.
func (m *Manager) spawn(p *Process) error {
	m.spawnMu.Lock()
	defer m.spawnMu.Unlock()
	if err := m.reserve(p); err != nil {
		return err
	}
	pid, err := p.fork(m.oom)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		if m.byID[p.id] == p {
			delete(m.byID, p.id)
		}
		return err
	}
	p.pid, p.started, p.up = pid, time.Now(), uptime()
	m.order++
	p.order = m.order
	m.byPID[pid] = p
	p.begin()
	return nil
}

// reserve takes p's ID. An ended process gives its own up.
func (m *Manager) reserve(p *Process) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing {
		return ErrClosed
	}
	if m.frozen != nil {
		return ErrFrozen
	}
	if p.id == "" {
		return nil
	}
	if old := m.byID[p.id]; old != nil {
		if !old.reaped {
			return fmt.Errorf("id %q is in use", p.id)
		}
		m.forget(old)
	}
	m.byID[p.id] = p
	return nil
}

// kick makes the reaper look for children that have ended.
func (m *Manager) kick() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// List describes the processes that run and the detached ones that ended lately,
// in the order of their start.
func (m *Manager) List() []Info {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := slices.Clone(m.ended)
	for _, p := range m.byPID {
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b *Process) int { return cmp.Compare(a.order, b.order) })
	infos := make([]Info, len(all))
	for i, p := range all {
		infos[i] = p.info()
	}
	return infos
}

// Get returns the process of that ID, which may have ended, or nil.
func (m *Manager) Get(id string) *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id]
}

// ByPID returns the running process of that number, or nil.
func (m *Manager) ByPID(pid int) *Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byPID[pid]
}

// Close kills all processes with their descendants, waits for them and ends what
// the manager runs. It is idempotent.
func (m *Manager) Close() {
	m.mu.Lock()
	first := !m.closing
	m.closing = true
	m.mu.Unlock()
	if first {
		// One that is being started now is either in the table after this or sees
		// closing itself.
		m.spawnMu.Lock()
		m.spawnMu.Unlock() //nolint:staticcheck // only to wait.
		m.endAll()
		m.oom.close()
		close(m.done)
	}
	m.wg.Wait()
	if first {
		m.kills.close()
	}
}

// closeTime bounds the wait for killed processes: one in an uninterruptible sleep
// may never end.
const closeTime = 5 * time.Second

func (m *Manager) endAll() {
	m.mu.Lock()
	running := slices.Collect(maps.Values(m.byPID))
	m.mu.Unlock()
	var kills sync.WaitGroup
	for _, p := range running {
		kills.Go(p.Kill)
	}
	kills.Wait()
	limit := time.After(closeTime)
	for _, p := range running {
		select {
		case <-p.Wait():
		case <-limit:
			m.log.Error("process does not end", slog.Int("pid", p.pid))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.ended) > 0 {
		m.forget(m.ended[0])
	}
	for d := range m.drains {
		d.stop()
	}
	for h := range m.hubs {
		h.finish()
	}
}

// childrenGetDefaultSignals undoes the effect of a parent that made us ignore
// SIGHUP and SIGINT (nohup, a shell's &): children would inherit it, and ^C would
// not end them. The Go runtime resets in children what it handles itself.
func childrenGetDefaultSignals() {
	for _, s := range []os.Signal{unix.SIGHUP, unix.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

func childrenGetNoDescriptors() {
	const first = 3
	if unix.CloseRange(first, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd >= first {
			unix.CloseOnExec(fd)
		}
	}
}
