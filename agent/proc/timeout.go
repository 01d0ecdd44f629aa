package proc

import (
	"time"

	"golang.org/x/sys/unix"
)

// TermTime is how long a process whose timeout has struck, and all that it started,
// have to end by themselves between SIGTERM and SIGKILL.
const TermTime = 500 * time.Millisecond

// Bounds of the looks for those who have not ended yet: each reads the process table.
const (
	termPause    = 2 * time.Millisecond
	maxTermPause = 50 * time.Millisecond
)

// timeOut ends the process and everything it started. They may say goodbye, unless
// they are frozen: then they could not, and whoever thaws them wants them gone.
func (p *Process) timeOut() {
	started, frozen, ok := p.markTimedOut()
	if !ok {
		return
	}
	known := map[int]uint64{p.pid: started}
	if !frozen && p.terminate(known) {
		return
	}
	p.killMu.Lock()
	defer p.killMu.Unlock()
	_, _ = p.stop()
	p.killFamily(known)
}

// markTimedOut notes that the timeout came first, and reports false if the end did.
func (p *Process) markTimedOut() (started uint64, frozen, ok bool) {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.reaped {
		return 0, false, false
	}
	self, found := readRelative(p.pid)
	if found && self.dead { // it was faster
		return 0, false, false
	}
	p.status.TimedOut = true
	return self.started, p.m.frozen != nil, true
}

// terminate asks the family to end and reports whether it did.
func (p *Process) terminate(known map[int]uint64) bool {
	for _, r := range p.extend(known) {
		_ = unix.Kill(r.pid, unix.SIGTERM)
	}
	over := time.NewTimer(TermTime)
	defer over.Stop()
	for pause := termPause; ; pause = min(2*pause, maxTermPause) {
		select {
		case <-over.C:
			return false
		case <-p.m.done:
			return false
		case <-time.After(pause):
		}
		// Those that are started meanwhile are found while their parents live.
		if len(p.extend(known)) == 0 {
			return true
		}
	}
}
