package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

// missedMax is how many times in a row Firecracker may not answer before it is taken
// for hung (threat T27).
const missedMax = 3

// A machine is one running Firecracker. It implements vm.Machine.
type machine struct {
	*life.Machine
	driver  *Driver
	config  vm.Config
	process *process
	jail    *jail
	api     *api
	channel *channel
	console *life.Tail // the end of what the guest wrote there
	said    *life.Tail // and of Firecracker's messages

	hung atomic.Bool           // it was killed because it did not answer
	exit atomic.Pointer[error] // what waiting for the warden said, once it has ended

	calls  chan struct{} // a mutex: one change of state at a time
	paused bool          // guarded by calls
}

// newMachine starts the warden of a machine in jail j.
func (d *Driver) newMachine(ctx context.Context, c *vm.Config, j *jail, dir *rundir.Dir) (*machine, error) {
	r, w, err := j.fifo(jailConsole)
	if err != nil {
		return nil, err
	}
	m := &machine{
		driver: d, config: *c, jail: j, api: newAPI(j.dialAPI),
		console: life.NewTail(consoleTail), said: life.NewTail(saidTail), calls: make(chan struct{}, 1),
	}
	m.channel = newChannel(func(ctx context.Context) (net.Conn, error) { return j.dial(ctx, jailVsock) })
	if m.process, err = d.start(ctx, c, dir.Path(), m.said); err != nil {
		return nil, errors.Join(err, r.Close(), w.Close())
	}
	m.Machine = life.NewMachine(life.Parts{Config: &m.config, Keeper: d.keeper, Dir: dir, Channel: m.channel, Kill: m.process.kill, Release: j.close})
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		_, _ = io.Copy(m.console, r)
	}()
	go m.watch(followed, r, w)
	return m, nil
}

// watch waits for the machine's end.
func (m *machine) watch(followed <-chan struct{}, r, w io.Closer) {
	err := m.process.cmd.Wait()
	m.exit.Store(&err)
	// What the guest said at last is in the pipe, which nobody else can hold open.
	_ = w.Close()
	late := time.AfterFunc(life.SettleTime, func() { _ = r.Close() })
	<-followed
	late.Stop()
	_ = m.process.orders.Close()
	m.Ended(m.cause)
	_ = r.Close()
}

// cause says what is known about an end that was not asked for.
func (m *machine) cause() string {
	cause := "Firecracker ended"
	var err error
	if exit := m.exit.Load(); exit != nil {
		err = *exit
	}
	switch exit, ok := errors.AsType[*exec.ExitError](err); {
	case m.driver.keeper.Cgroups.OOMKilled(m.ID()):
		cause = "it ran out of memory"
	case m.hung.Load():
		cause = "Firecracker did not answer any more and was killed"
	case ok && exit.ExitCode() == exitSeccomp:
		cause = "Firecracker was stopped by its filter of system calls (status 148), which its guest may have caused: look into it"
	case ok && exit.ExitCode() > exitSignal && exit.ExitCode() < exitSeccomp:
		cause = fmt.Sprintf("Firecracker was killed by signal %d", exit.ExitCode()-exitSignal)
	case err != nil:
		cause += ": " + err.Error()
	}
	if s := life.OneLine(m.said.String()); s != "" {
		cause += fmt.Sprintf(": %q", s)
	}
	if s := life.OneLine(life.LastWords(m.console.String())); s != "" {
		cause += fmt.Sprintf(": console: %q", s)
	}
	return cause
}

// settled reports, after something failed, whether the machine has ended: its sockets
// go a little before it.
func (m *machine) settled() bool {
	timer := time.NewTimer(life.SettleTime)
	defer timer.Stop()
	select {
	case <-m.Done():
		return true
	case <-timer.C:
		return false
	}
}

// Console implements vm.Machine.
func (m *machine) Console() []byte { return m.console.Bytes() }

// guard kills a Firecracker that does not answer any more, until the machine ends.
func (m *machine) guard(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for missed := 0; missed < missedMax; {
		select {
		case <-m.Done():
			return
		case <-tick.C:
		}
		if m.answers(every) {
			missed = 0
		} else {
			missed++
		}
	}
	m.Log().Error("Firecracker does not answer and is killed", slog.String("machine", m.ID()))
	m.hung.Store(true)
	if err := m.process.kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		m.Log().Error("cannot kill warden", slog.String("machine", m.ID()), slog.Any("error", err))
	}
}

// answers asks Firecracker for its state, unless it is at work for somebody.
func (m *machine) answers(limit time.Duration) bool {
	select {
	case m.calls <- struct{}{}:
		defer func() { <-m.calls }()
	default:
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var info instanceInfo
	err := m.api.get(ctx, pathInstance, &info)
	return err == nil || refused(err)
}
