package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// forceAfter is how long a command may take to end after the first signal to end
// it, where nobody may be there to send a second one.
const forceAfter = 5 * time.Second

// runSignals are those that run handles itself. SIGPIPE is among them so that a
// reader of our output that goes away ends the run in order: the runtime would
// kill the program on the spot, and the sandbox's remains would wait for the next
// sweep.
var runSignals = []os.Signal{
	syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
	syscall.SIGWINCH, syscall.SIGCONT,
}

// A command that runs, as far as signals are concerned.
type signalTarget interface {
	Signal(syscall.Signal) error
}

// An interrupter decides what a signal to Bouvet means. Before the command runs,
// the first to end ends everything. While it runs, the first is passed on to it,
// and a second one, or forceAfter for those that no keyboard sends, ends it by
// force.
type interrupter struct {
	cancel context.CancelCauseFunc
	// terminal is told of SIGWINCH and SIGCONT.
	terminal func(syscall.Signal)

	mu     sync.Mutex
	target signalTarget   // guarded by mu
	first  syscall.Signal // guarded by mu; 0 until one came

	stop  func()
	done  chan struct{}
	ended chan struct{}
}

func (w *world) watchSignals(cancel context.CancelCauseFunc, terminal func(syscall.Signal)) *interrupter {
	i := &interrupter{cancel: cancel, terminal: terminal, done: make(chan struct{}), ended: make(chan struct{})}
	var signals <-chan os.Signal
	signals, i.stop = w.notify(runSignals...)
	go i.loop(signals)
	return i
}

func (i *interrupter) loop(signals <-chan os.Signal) {
	defer close(i.ended)
	var force <-chan time.Time
	for {
		select {
		case <-i.done:
			return
		case <-force:
			i.end()
		case s := <-signals:
			if i.handle(asSignal(s)) && force == nil {
				timer := time.NewTimer(forceAfter)
				defer timer.Stop()
				force = timer.C
			}
		}
	}
}

// handle reports whether the command has to end soon, even without more signals.
func (i *interrupter) handle(s syscall.Signal) (deadline bool) {
	switch s {
	case syscall.SIGPIPE:
		return false // the failed write says so
	case syscall.SIGWINCH, syscall.SIGCONT:
		i.terminal(s)
		return false
	}
	i.mu.Lock()
	target, first := i.target, i.first
	ends := s != syscall.SIGUSR1 && s != syscall.SIGUSR2
	if ends && first == 0 {
		i.first = s
	}
	i.mu.Unlock()

	if target != nil && (!ends || first == 0) && target.Signal(s) == nil {
		return s == syscall.SIGTERM || s == syscall.SIGHUP
	}
	if ends {
		i.end()
	}
	return false
}

// end ends everything, by force if need be.
func (i *interrupter) end() {
	i.mu.Lock()
	first := i.first
	i.mu.Unlock()
	i.cancel(&signalError{first})
}

// running makes target the receiver of signals; nil means none any more. A
// signal that came just before is passed on.
func (i *interrupter) running(target signalTarget) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.target = target
}

// close stops watching; signals have their default action again.
func (i *interrupter) close() {
	close(i.done)
	<-i.ended
	i.stop()
}

// signalName is a signal as people write it: "SIGKILL".
func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("signal %d", int(s))
}

// causedBySignal returns the signal that ended ctx, if one did.
func causedBySignal(ctx context.Context) (*signalError, bool) {
	var sig *signalError
	ok := errors.As(context.Cause(ctx), &sig)
	return sig, ok
}
