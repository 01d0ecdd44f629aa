package bouvet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

// WindowSize is the size of a terminal in characters; 80x24 when 0.
type WindowSize struct{ Cols, Rows uint16 }

// Cmd is a command in a sandbox with its streams. It mirrors os/exec.Cmd: set
// the fields, then Run, or Start and Wait. A Cmd runs once. Its context bounds
// its life: when that ends, so does the command and all that it started.
type Cmd struct {
	// Args holds the program and its arguments. No shell is involved.
	Args []string
	// Dir is the working directory; the agent's own when empty.
	Dir string
	// Env holds KEY=value pairs, added to the sandbox's and the agent's.
	Env []string
	// User is a name, a number or "uid:gid"; the agent's own user when empty.
	User string
	// Timeout ends the command and all that it started; 0 means never.
	Timeout time.Duration

	// TTY gives the command a terminal of that Size. Its output arrives in Stdout.
	TTY  bool
	Size WindowSize

	// Stdin feeds the command; nil is an empty input. It is read by a goroutine of
	// the Cmd until its end or the command's.
	Stdin io.Reader
	// Stdout and Stderr receive output as it comes; nil drops it. A slow writer
	// slows the command down: nothing is buffered without bound. A writer that
	// fails ends the command, and Wait returns its error. If both are the same
	// and comparable, Write is called by one goroutine at a time, as always.
	Stdout, Stderr io.Writer

	// Detach lets the command and a bounded tail of its output live on without
	// us: after Release, or when the context ends or this process does. ID names
	// it for Attach; the agent chooses one when empty.
	Detach bool
	ID     string

	// WaitDelay is how long Wait waits, after the command has ended, for a Read of
	// Stdin that has not returned. A reader with deadlines (a pipe, a connection)
	// is interrupted at once; of another, the goroutine ends when its Read returns.
	// It is also how long, but a second at least, Wait waits for a Write to Stdout
	// or Stderr that does not return once the command has been given up: because
	// ctx ended or Timeout struck. That goroutine ends when the Write returns.
	WaitDelay time.Duration

	// OutputLimit is how much of each stream Output and CombinedOutput collect, in
	// bytes; 16 MiB when 0. A command that writes more is ended.
	OutputLimit int

	client   *AgentClient
	ctx      context.Context //nolint:containedctx // as in os/exec: it bounds the command, which is a call.
	attach   string
	replay   *uint64
	deadline time.Duration // the sandbox's default of Timeout
	env      []string      // the sandbox's
	began    func() (entropy []byte, err error)
	launched func() // the agent has answered, or never will
	ended    func()
	session  *session
	pipes    []*pipe
	feed     *stdinPipe
	keep     *tailBuffer // Output's copy of standard error
	waited   bool
	mu       sync.Mutex // guards waited
}

// ErrOutputLimit means that a command wrote more than Cmd.OutputLimit.
var ErrOutputLimit = errors.New("output is longer than its limit")

// Command returns a Cmd that runs name with args. ctx bounds the command's life;
// it must not be nil.
func (c *AgentClient) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Args: append([]string{name}, args...), client: c, ctx: ctx}
}

// Attach returns a Cmd that joins the detached command of that ID. Its output is
// replayed from offset replayFrom on, counted in bytes of stdout and stderr
// together, as far as the agent has kept it; a negative one means only what
// comes. The fields that describe a command must stay empty.
func (c *AgentClient) Attach(ctx context.Context, id string, replayFrom int64) *Cmd {
	cmd := &Cmd{client: c, ctx: ctx, attach: id, Detach: true}
	if replayFrom >= 0 {
		from := uint64(replayFrom)
		cmd.replay = &from
	}
	return cmd
}

// Run starts the command and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// defaultOutputLimit is the OutputLimit of a Cmd that has none.
const defaultOutputLimit = 16 << 20

// Output runs the command and returns its standard output. If Stderr was nil, an
// ExitError holds the beginning and the end of what the command wrote there.
func (c *Cmd) Output() ([]byte, error) {
	if c.Stdout != nil {
		return nil, errors.New("cannot collect output: Stdout is already set")
	}
	out := limitedBuffer{limit: first(c.OutputLimit, defaultOutputLimit)}
	c.Stdout = &out
	if c.Stderr == nil {
		c.keep = &tailBuffer{}
		c.Stderr = c.keep
	}
	err := c.Run()
	var exit *ExitError
	if errors.As(err, &exit) && c.keep != nil {
		exit.Stderr = c.keep.Bytes()
	}
	return out.b.Bytes(), err
}

// CombinedOutput runs the command and returns its standard output and standard
// error in the order in which they came.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("cannot collect output: Stdout or Stderr is already set")
	}
	out := limitedBuffer{limit: first(c.OutputLimit, defaultOutputLimit)}
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.b.Bytes(), err
}

// StdinPipe returns a pipe to the command's standard input; its Close is the
// end of input. Close it or end the command; Wait closes it.
func (c *Cmd) StdinPipe() (io.WriteCloser, error) {
	if c.Stdin != nil || c.feed != nil {
		return nil, errors.New("cannot open stdin pipe: Stdin is already set")
	}
	if c.session != nil {
		return nil, errors.New("cannot open stdin pipe: command already started")
	}
	c.feed = &stdinPipe{cmd: c}
	return c.feed, nil
}

// StdoutPipe returns a pipe from the command's standard output. It holds a few
// bytes; a command whose output nobody reads stands still, and Wait with it, so
// read to the end first. What is left unread can still be read after Wait.
func (c *Cmd) StdoutPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stdout, "stdout") }

// StderrPipe is StdoutPipe for standard error.
func (c *Cmd) StderrPipe() (io.ReadCloser, error) { return c.outputPipe(&c.Stderr, "stderr") }

func (c *Cmd) outputPipe(w *io.Writer, name string) (io.ReadCloser, error) {
	if *w != nil {
		return nil, fmt.Errorf("cannot open %s pipe: it is already set", name)
	}
	if c.session != nil {
		return nil, fmt.Errorf("cannot open %s pipe: command already started", name)
	}
	p := newPipe()
	*w = p
	c.pipes = append(c.pipes, p)
	return p, nil
}

// Wait waits until the command has ended and all its output has been written. It
// returns nil if the exit code was 0, an ExitError otherwise, the error of ctx if
// that ended first, or what broke the stream.
func (c *Cmd) Wait() error {
	if c.session == nil {
		return errors.New("cannot wait: command not started")
	}
	c.mu.Lock()
	waited := c.waited
	c.waited = true
	c.mu.Unlock()
	if waited {
		return errors.New("cannot wait: Wait was already called")
	}
	return c.session.wait(c.WaitDelay)
}

// PID returns the command's process ID in the guest, 0 if the agent does not
// tell it or the command has not started.
func (c *Cmd) PID() int {
	if c.session == nil {
		return 0
	}
	return c.session.started.PID
}

// ProcessID returns the name under which a detached command can be attached.
func (c *Cmd) ProcessID() string {
	if c.session == nil {
		return ""
	}
	return c.session.started.ID
}

// Offset returns where the output of an attached command begins, in bytes since
// the command started.
func (c *Cmd) Offset() uint64 {
	if c.session == nil {
		return 0
	}
	return c.session.started.Offset
}

// Signal sends a signal to the command's process group. It needs an agent with
// the capability "exec.extended".
func (c *Cmd) Signal(sig syscall.Signal) error {
	if c.session == nil {
		return errors.New("cannot signal: command not started")
	}
	if !c.session.extended {
		return &UnsupportedError{What: "signals to a command"}
	}
	select {
	case <-c.session.done:
		return os.ErrProcessDone
	default:
	}
	if (c.Stdin != nil || c.feed != nil) && !c.client.opts.ExecOnly {
		// In the stream it would wait behind input that the command may never read.
		p := wire.SignalParams{PID: c.PID(), Signal: int(sig), Group: true}
		if err := c.client.Signal(c.session.ctx, p); !errors.Is(err, ErrRPC) && !errors.Is(err, ErrUnsupported) {
			if c.session.exited() {
				return nil // before the agent could say so: of this signal, most likely
			}
			return err
		}
	}
	return c.session.control(wire.InputFrame{Type: wire.FrameTypeSignal, Signal: int(sig)})
}

// Resize tells the command's terminal its new size.
func (c *Cmd) Resize(size WindowSize) error {
	if c.session == nil {
		return errors.New("cannot resize: command not started")
	}
	return c.session.control(wire.InputFrame{Type: wire.FrameTypeResize, Cols: size.Cols, Rows: size.Rows})
}

// Release ends our part in a detached command, which runs on. Wait then returns
// an error. Of a command that is not detached, it ends the command.
func (c *Cmd) Release() error {
	if c.session == nil {
		return errors.New("cannot release: command not started")
	}
	c.session.cancel(errReleased)
	<-c.session.done
	return nil
}

var errReleased = errors.New("command was released")

// limitedBuffer collects output up to a limit, beyond which it fails.
type limitedBuffer struct {
	b     bytes.Buffer
	limit int
}

func (l *limitedBuffer) Write(p []byte) (int, error) {
	if room := l.limit - l.b.Len(); len(p) > room {
		l.b.Write(p[:room])
		return room, fmt.Errorf("%w of %d bytes", ErrOutputLimit, l.limit)
	}
	return l.b.Write(p)
}

// tailBuffer keeps the beginning and the end of what is written to it.
type tailBuffer struct {
	head, tail []byte
	dropped    int64
}

const tailBufferPart = 32 << 10

func (t *tailBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if room := tailBufferPart - len(t.head); room > 0 {
		take := min(room, len(p))
		t.head = append(t.head, p[:take]...)
		p = p[take:]
	}
	t.tail = append(t.tail, p...)
	if over := len(t.tail) - tailBufferPart; over > 0 {
		t.dropped += int64(over)
		t.tail = append(t.tail[:0], t.tail[over:]...)
	}
	return n, nil
}

func (t *tailBuffer) Bytes() []byte {
	b := bytes.Clone(t.head)
	if t.dropped > 0 {
		b = fmt.Appendf(b, "\n... [%d bytes omitted] ...\n", t.dropped)
	}
	return append(b, t.tail...)
}
