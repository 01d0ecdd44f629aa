package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// An outcome is how a run ended, as --json prints it.
type outcome struct {
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	// The base64 forms are there for output that is not UTF-8, in whose place the
	// texts hold U+FFFD.
	StdoutBase64 string `json:"stdout_base64,omitempty"`
	StderrBase64 string `json:"stderr_base64,omitempty"`
	outcomeRest

	// stdout and stderr stand for the texts while the outcome is made: they may be
	// large, and their JSON many times larger.
	stdout, stderr []byte

	// message is for standard error: why a command did not start, or that its
	// time was up.
	message error
}

// outcomeRest is what follows the output.
type outcomeRest struct {
	// Truncated means that a stream was longer than --max-output.
	Truncated bool `json:"truncated"`
	TimedOut  bool `json:"timed_out"`
	// OOMKilled means that the command was killed because memory ran out.
	OOMKilled bool `json:"oom_killed,omitempty"`
	// Signal is the one that ended the command: "SIGKILL".
	Signal string `json:"signal,omitempty"`
	// DurationMS is the time of the command, CreateMS that of the sandbox before.
	DurationMS int64      `json:"duration_ms"`
	CreateMS   int64      `json:"create_ms"`
	SandboxID  string     `json:"sandbox_id"`
	Driver     string     `json:"driver"`
	Image      string     `json:"image"`
	Error      *jsonError `json:"error,omitempty"`
}

// endOf translates the end of a command into an exit code; err is for what went
// wrong with Bouvet rather than with the command.
func endOf(ctx context.Context, cmd *bouvet.Cmd, err error) (*outcome, error) {
	var exit *bouvet.ExitError
	var start *bouvet.StartError
	o := &outcome{}
	switch {
	case err == nil:
	case errors.As(err, &exit) && exit.TimedOut:
		o.ExitCode, o.TimedOut = exitTimeout, true
		o.message = &problem{kind: "timed_out", err: fmt.Errorf("the command was ended after %s", cmd.Timeout), remedy: "a longer --timeout"}
	case errors.As(err, &exit) && exit.Signal != 0:
		o.ExitCode, o.Signal = exitSignalBase+int(exit.Signal), signalName(exit.Signal)
	case errors.As(err, &exit) && exit.Code < 0:
		// An agent that does not tell signals; it was most likely this one.
		o.ExitCode, o.Signal = exitSignalBase+int(syscall.SIGKILL), signalName(syscall.SIGKILL)
	case errors.As(err, &exit):
		o.ExitCode = exit.Code
	case errors.As(err, &start):
		o.ExitCode, o.message = startFailure(cmd, start)
	case errors.Is(err, bouvet.ErrTimedOut):
		o.ExitCode, o.TimedOut = exitTimeout, true
		o.message = &problem{kind: "timed_out", err: err, remedy: "a longer --timeout"}
	case errors.Is(err, syscall.EPIPE):
		// Whoever read our output went away. That is no failure: head does it.
		o.ExitCode, o.Signal = exitSignalBase+int(syscall.SIGPIPE), signalName(syscall.SIGPIPE)
	default:
		if sig, ok := causedBySignal(ctx); ok {
			o.ExitCode, o.Signal = sig.code(), signalName(sig.signal)
			return o, nil
		}
		if errors.Is(err, vm.ErrGone) {
			return nil, &goneError{err}
		}
		return nil, fmt.Errorf("cannot run the command to its end: %w", err)
	}
	if exit != nil && exit.OOMKilled && !o.TimedOut {
		o.OOMKilled = true
		o.message = &problem{kind: kindOutOfMemory, err: errors.New("the sandbox ran out of memory, and the command was killed"), remedy: remedyMemory}
	}
	return o, nil
}

// A goneError says that the sandbox died, and why, without what lies between.
type goneError struct{ err error }

func (e *goneError) Error() string {
	why := "the machine is gone"
	if _, cause, ok := strings.Cut(e.err.Error(), vm.ErrGone.Error()+": "); ok {
		why = cause
	}
	why, _, _ = strings.Cut(why, " (I/O error")
	return "the sandbox died before the command ended: " + why
}

func (e *goneError) Unwrap() error { return e.err }

// startFailure gives the exit codes of a shell to a command that did not start.
func startFailure(cmd *bouvet.Cmd, start *bouvet.StartError) (int, error) {
	p := &problem{kind: kindNotStarted, err: fmt.Errorf("cannot run %s: %s", quoted(cmd.Args[0]), printable(start.Message, 1000))}
	switch {
	case strings.HasPrefix(start.Message, "chdir "):
		p.remedy = "-w with a directory that is there"
		return exitFailure, p
	case errors.Is(start, fs.ErrNotExist):
		p.remedy = "bouvet run -- ls /usr/local/bin /usr/bin /bin, to see what the image has"
		return exitNotFound, p
	case errors.Is(start, fs.ErrPermission), strings.HasSuffix(start.Message, "exec format error"), strings.HasSuffix(start.Message, "is a directory"):
		p.remedy = "a program that this user may execute, or sh FILE for a script"
		return exitNotExecutable, p
	case strings.HasPrefix(start.Message, "unknown user"):
		p.remedy = "-u with a number or a user of the image: bouvet run -- cat /etc/passwd"
		return exitFailure, p
	default:
		p.remedy = "bouvet run --help"
		return exitFailure, p
	}
}

// fill adds what --json tells beside the end itself.
func (o *outcome) fill(s *runSession, stdout, stderr *capture, started time.Time) {
	o.stdout, o.stderr = stdout.kept.Bytes(), stderr.kept.Bytes()
	o.Truncated = stdout.dropped > 0 || stderr.dropped > 0
	o.DurationMS = time.Since(started).Milliseconds()
	o.CreateMS = s.created.Sub(s.sandbox.CreatedAt()).Milliseconds()
	o.SandboxID, o.Driver, o.Image = s.sandbox.ID().String(), s.driver.Name(), s.image.Digest
	if o.message != nil {
		e := describe(o.message)
		o.Error = &e
	}
}

// write writes o as writeJSON would, from the outputs themselves: a guest must not be
// able to have us hold their JSON as a whole (T05).
func (o *outcome) write(w io.Writer) error {
	var rest bytes.Buffer
	if err := writeJSON(&rest, &o.outcomeRest); err != nil {
		return err
	}
	b := bufio.NewWriterSize(w, 64<<10)
	_, _ = fmt.Fprintf(b, "{\n  \"exit_code\": %d,\n  \"stdout\": ", o.ExitCode)
	writeString(b, o.stdout)
	_, _ = b.WriteString(",\n  \"stderr\": ")
	writeString(b, o.stderr)
	for _, s := range []struct {
		name string
		data []byte
	}{{"stdout_base64", o.stdout}, {"stderr_base64", o.stderr}} {
		if utf8.Valid(s.data) {
			continue
		}
		_, _ = fmt.Fprintf(b, ",\n  %q: \"", s.name)
		enc := base64.NewEncoder(base64.StdEncoding, b)
		_, _ = enc.Write(s.data)
		_ = enc.Close()
		_ = b.WriteByte('"')
	}
	_ = b.WriteByte(',')
	_, _ = b.Write(bytes.TrimPrefix(rest.Bytes(), []byte("{")))
	return b.Flush() // says what failed before, too
}
