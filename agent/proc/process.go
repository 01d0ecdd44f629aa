package proc

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Spec says what to run.
type Spec struct {
	// Args are the program and its arguments. A program without a slash is looked
	// for in the PATH of the process.
	Args []string
	// Dir is the working directory; this program's own when empty.
	Dir string
	// Env holds KEY=value pairs, added to this program's own environment.
	Env []string
	// User is a name or a number, or "user:group"; this program's own user when
	// empty. HOME, USER and LOGNAME follow it.
	User string
	// TTY gives the process a terminal of Cols times Rows, 80x24 when 0.
	TTY        bool
	Cols, Rows uint16
	// Stdin makes a pipe to the process; otherwise it reads /dev/null. A terminal
	// is always its own stdin.
	Stdin bool
	// PipeSize asks for a pipe of that many bytes for stdout, for bulk output; 0 means
	// the kernel's own size.
	PipeSize int
	// Timeout ends the process with all its descendants, by SIGTERM and, after TermTime,
	// by SIGKILL; 0 means never.
	Timeout time.Duration
	// Detached keeps the tail of the output, which is then read through Hub, and
	// remembers the process for a while after its end.
	Detached bool
	// ID names the process, see CheckID. A detached one without gets one.
	ID string
}

func (s *Spec) check() error {
	if len(s.Args) == 0 || s.Args[0] == "" {
		return errors.New("missing command")
	}
	if s.ID != "" {
		return CheckID(s.ID)
	}
	return nil
}

// MaxID is the length of the longest ID.
const MaxID = 64

// CheckID says what is wrong with an ID.
func CheckID(id string) error {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	if id == "" || len(id) > MaxID || strings.Trim(id, allowed) != "" {
		return errors.New("an id has 1 to 64 characters of A-Z a-z 0-9 . _ -")
	}
	return nil
}

// A Status says how a process ended.
type Status struct {
	// ExitCode is -1 for a process that a signal or its timeout ended.
	ExitCode int
	// Signal is the signal that ended it, or 0.
	Signal     int
	CoreDumped bool
	// TimedOut means that it ended for its timeout, by whatever signal or by itself.
	TimedOut bool
	// OOMKilled means that the kernel ended it because memory ran out: it itself, or,
	// where it is a shell whose exit code says that SIGKILL ended a command, a process
	// of the machine since its start. It is only known of Options.Guest.
	OOMKilled bool
}

// Info describes a process.
type Info struct {
	ID       string
	PID      int
	Args     []string
	Dir      string
	User     string
	TTY      bool
	Detached bool
	Started  time.Time
	Running  bool
	Status   Status // once Running is false
}

// A Process is a program that was started. Its methods are safe for concurrent use.
type Process struct {
	m        *Manager
	spec     Spec
	id       string
	detached bool
	launch   launch // what fork needs; dropped after it

	pid     int
	order   uint64
	started time.Time
	up      time.Duration // of the machine, when it started
	ended   chan struct{} // closed when it has been reaped

	stdin          input
	stdout, stderr *output
	tty            *os.File // the terminal's master
	hub            *Hub
	feed           *Feed

	reaped bool        // guarded by m.mu
	status Status      // guarded by m.mu until ended is closed
	timer  *time.Timer // of the timeout, then of being remembered; guarded by m.mu

	killMu sync.Mutex // one kill at a time
}

func newProcess(m *Manager, s Spec) (*Process, error) {
	p := &Process{m: m, spec: s, id: s.ID, detached: s.Detached, ended: make(chan struct{})}
	if p.id == "" && p.detached {
		p.id = strings.ToLower(rand.Text())
	}
	if err := p.prepare(); err != nil {
		p.closeFiles()
		return nil, err
	}
	p.feed = newFeed(p)
	return p, nil
}

// begin starts what accompanies a running process. The caller holds m.mu.
func (p *Process) begin() {
	if p.detached {
		p.hub = newHub()
		p.startPumps()
	}
	if p.spec.Timeout > 0 {
		p.timer = time.AfterFunc(p.spec.Timeout, p.timeOut)
	}
}

// PID returns the process number, which is also that of its session and group.
func (p *Process) PID() int { return p.pid }

// ID returns the name it was given; empty for most.
func (p *Process) ID() string { return p.id }

// TTY reports whether it has a terminal.
func (p *Process) TTY() bool { return p.spec.TTY }

// Timeout returns the time after which it is ended, 0 for none.
func (p *Process) Timeout() time.Duration { return p.spec.Timeout }

// Detached reports whether its output goes to a Hub.
func (p *Process) Detached() bool { return p.detached }

// Stdin returns the writer of its standard input, nil if it has none. A Write
// blocks until the process reads, and fails with syscall.EPIPE once that has
// ended or closed its end, and with os.ErrClosed after Close. On a terminal Close
// sends the end-of-file character instead, as far as the terminal is in canonical
// mode.
func (p *Process) Stdin() io.WriteCloser {
	if p.stdin == nil {
		return nil
	}
	return p.stdin
}

// Feed returns a queue before its standard input. Use it or Stdin, not both.
func (p *Process) Feed() *Feed { return p.feed }

// Stdout returns the reader of its output, or of its terminal's. It ends when the
// process has ended and all is read that the pipe held then; it never waits for a
// background child that holds the other end. It must be read to its end or be
// closed. Nil for a detached process.
func (p *Process) Stdout() io.ReadCloser { return p.reader(p.stdout) }

// Stderr is like Stdout. Nil on a terminal.
func (p *Process) Stderr() io.ReadCloser { return p.reader(p.stderr) }

func (p *Process) reader(o *output) io.ReadCloser {
	if o == nil || p.detached {
		return nil
	}
	return o
}

// Hub returns the output of a detached process, nil for others.
func (p *Process) Hub() *Hub { return p.hub }

// Wait returns a channel that is closed when the process has ended.
func (p *Process) Wait() <-chan struct{} { return p.ended }

// Status says how it ended. It is zero before that.
func (p *Process) Status() Status {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if !p.reaped {
		return Status{}
	}
	return p.status
}

// info describes p. The caller holds m.mu.
func (p *Process) info() Info {
	i := Info{
		ID: p.id, PID: p.pid, Args: p.spec.Args, Dir: p.spec.Dir, User: p.spec.User, TTY: p.spec.TTY,
		Detached: p.detached, Started: p.started, Running: !p.reaped,
	}
	if p.reaped {
		i.Status = p.status
	}
	return i
}

// ErrEnded is returned for a process that has ended.
var ErrEnded = os.ErrProcessDone

// Signal sends a signal to the process or to its process group. On a terminal the
// group's signals that a keyboard makes go to the foreground job, as ^C does, and
// others also to it. While processes are frozen the error is ErrFrozen, but for
// SIGKILL.
func (p *Process) Signal(sig unix.Signal, group bool) error {
	if group && p.tty != nil {
		if done, err := p.signalJob(sig); done {
			return err
		}
	}
	return p.kill(sig, group)
}

// kill sends a signal. Under m.mu the process cannot be reaped, so that its
// number is its own.
func (p *Process) kill(sig unix.Signal, group bool) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.reaped {
		return ErrEnded
	}
	if p.m.frozen != nil && sig != unix.SIGKILL {
		return ErrFrozen
	}
	target := p.pid
	if group {
		target = -p.pid
	}
	if err := unix.Kill(target, sig); err != nil {
		return fmt.Errorf("cannot send signal %d: %w", int(sig), err)
	}
	return nil
}

// Resize sets the size of its terminal. Without one nothing happens.
func (p *Process) Resize(cols, rows uint16) error {
	if p.tty == nil {
		return nil
	}
	return resize(p.tty, cols, rows)
}

// AwaitThaw returns when nothing is frozen any more, or over is closed.
func (p *Process) AwaitThaw(over <-chan struct{}) {
	select {
	case <-p.m.Thawed():
	case <-over:
	}
}

// unblock wakes readers and writers at the end of the process.
func (p *Process) unblock() {
	if p.stdin != nil {
		p.stdin.processEnded()
	}
	for _, o := range []*output{p.stdout, p.stderr} {
		if o != nil {
			o.processEnded()
		}
	}
}
