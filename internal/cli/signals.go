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

// A signalTarget is a command that runs, as far as signals are concerned. Signal
// may block while a guest does not read, until the command has ended.
type signalTarget interface {
	Signal(syscall.Signal) error
}

// An interrupter decides what a signal to Bouvet means. Before there is a command,
// the first to end ends everything. Once there is one, the first is passed on to
// it, and a second one, or forceAfter for those that no keyboard sends, ends it by
// force.
type interrupter struct {
	cancel context.CancelCauseFunc
	// terminal is told of SIGWINCH and SIGCONT.
	terminal func(syscall.Signal)

	mu    sync.Mutex
	queue chan syscall.Signal // to the command, nil without one; guarded by mu
	first syscall.Signal      // guarded by mu; 0 until one came

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
	ends := s != syscall.SIGUSR1 && s != syscall.SIGUSR2
	if i.pass(s, ends) {
		return s == syscall.SIGTERM || s == syscall.SIGHUP
	}
	if ends {
		i.end()
	}
	return false
}

// pass queues a signal for the command, if there is one and it is the signal's
// turn.
func (i *interrupter) pass(s syscall.Signal, ends bool) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	first := i.first
	if ends && first == 0 {
		i.first = s
	}
	if i.queue == nil || ends && first != 0 {
		return false
	}
	select {
	case i.queue <- s:
		return true
	default:
		return false // the command has stopped taking any
	}
}

// end ends everything, by force if need be.
func (i *interrupter) end() {
	i.mu.Lock()
	first := i.first
	i.mu.Unlock()
	i.cancel(&signalError{first})
}

// begin says that a command is being started: signals wait for it from now on. The
// queue is small: none but SIGUSR1 and SIGUSR2 can fill it.
func (i *interrupter) begin() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.queue = make(chan syscall.Signal, 16)
}

// during passes signals on to target while wait runs, which returns when the
// command has ended.
func (i *interrupter) during(target signalTarget, wait func() error) error {
	i.mu.Lock()
	queue := i.queue
	i.mu.Unlock()
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		for s := range queue {
			if target.Signal(s) != nil && s != syscall.SIGUSR1 && s != syscall.SIGUSR2 {
				i.end()
			}
		}
	}()
	err := wait()
	i.over()
	<-passed
	return err
}

// over says that there is no command any more.
func (i *interrupter) over() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.queue != nil {
		close(i.queue)
		i.queue = nil
	}
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
