package proc

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// reap waits for children until the manager is done. SIGCHLD says only that at
// least one has ended, so each time all of them are looked for.
func (m *Manager) reap(ends <-chan os.Signal) {
	look := m.reapOwn
	if m.opt.Reap {
		look = m.reapAny
	}
	for {
		select {
		case <-ends:
		case <-m.wake:
		case <-m.done:
			look()
			return
		}
		look()
	}
}

// reapAny waits for every child, ours or adopted.
func (m *Manager) reapAny() {
	for m.reapNext() {
	}
}

func (m *Manager) reapNext() (more bool) {
	// Not before a process that has been forked is in the table.
	m.spawnMu.Lock()
	defer m.spawnMu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	pid, status, ok := wait(-1)
	if ok {
		if p := m.byPID[pid]; p != nil {
			m.finish(p, status)
		}
	}
	return ok
}

// reapOwn waits for the processes of this manager alone.
func (m *Manager) reapOwn() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for pid, p := range m.byPID {
		if _, status, ok := wait(pid); ok {
			m.finish(p, status)
		}
	}
}

// wait takes the status of an ended child, if there is one.
func wait(pid int) (int, syscall.WaitStatus, bool) {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG|unix.WALL, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		return got, status, err == nil && got > 0
	}
}

// finish notes the end of p, which has just been reaped. The caller holds m.mu,
// so nobody can have used the process number since.
func (m *Manager) finish(p *Process, status syscall.WaitStatus) {
	p.reaped = true
	p.status.ExitCode = status.ExitStatus() // -1 unless it exited by itself
	if p.status.TimedOut {
		p.status.ExitCode = -1 // a code it exits with when it is asked to end is no result
	}
	if status.Signaled() {
		p.status.Signal = int(status.Signal())
		p.status.CoreDumped = status.CoreDump()
	}
	p.status.OOMKilled = m.kills.killed(p.pid, p.up, &p.status)
	delete(m.byPID, p.pid)
	if p.timer != nil {
		p.timer.Stop()
	}
	switch {
	case p.detached:
		m.remember(p)
	case m.byID[p.id] == p:
		delete(m.byID, p.id)
	}
	close(p.ended)
	p.unblock()
}

// remember keeps the ended p for those who come to attach to it.
func (m *Manager) remember(p *Process) {
	m.ended = append(m.ended, p)
	if len(m.ended) > m.opt.MaxEnded {
		m.forget(m.ended[0])
	}
	p.timer = time.AfterFunc(m.opt.KeepEnded, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.forget(p)
	})
}

// forget drops the ended p. The caller holds m.mu.
func (m *Manager) forget(p *Process) {
	if p.timer != nil {
		p.timer.Stop()
	}
	if m.byID[p.id] == p {
		delete(m.byID, p.id)
	}
	if i := slices.Index(m.ended, p); i >= 0 {
		m.ended = slices.Delete(m.ended, i, i+1)
	}
}
