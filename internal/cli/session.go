package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// sweepTime bounds the search for leftovers before a run.
	sweepTime = 2 * time.Second
	// destroyTime bounds the removal of the sandbox.
	destroyTime = 30 * time.Second
)

// A runSession is one run from the first signal handler to the last trace.
type runSession struct {
	*runCommand
	job   *job
	began time.Time

	terminal *terminal
	sandbox  *bouvet.Sandbox
	driver   vm.Driver
	image    image.Info
	saved    *snapstore.Info // the snapshot to run on; nil without one
	created  time.Time
	outcome  *outcome // to be told at the end
}

// run tells the outcome last: nobody may be reading, and by then there is no sandbox
// that would wait for that, and a signal ends the program.
func (s *runSession) run(ctx context.Context) error {
	err := s.runAndRemove(ctx)
	switch {
	case s.outcome == nil:
	case s.json:
		if err := s.outcome.write(s.stdout); err != nil {
			return err
		}
	case s.outcome.message != nil:
		s.report(s.outcome.message, false)
	}
	return err
}

func (s *runSession) runAndRemove(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.terminal = s.wantsTerminal()
	defer s.terminal.dropInput() // last: the removal of the sandbox takes as long as an answer
	resized := make(chan struct{}, 1)
	signals := s.watchSignals(cancel, func(sig syscall.Signal) { s.terminalSignal(sig, resized) })
	defer signals.close()

	err := s.inSandbox(ctx, func() error { return s.execute(ctx, cancel, signals, resized) })
	var exit *exitError
	if sig, ok := causedBySignal(ctx); ok && (err != nil && !errors.As(err, &exit)) {
		if s.json {
			return &exitError{code: sig.code(), err: sig}
		}
		return exitWith(sig.code())
	}
	return err
}

func (s *runSession) terminalSignal(sig syscall.Signal, resized chan<- struct{}) {
	if s.terminal == nil {
		return
	}
	if sig == syscall.SIGCONT {
		s.terminal.reraw()
	}
	select {
	case resized <- struct{}{}:
	default: // one is waiting already
	}
}

// inSandbox runs do with a sandbox and removes it, however do ends.
func (s *runSession) inSandbox(ctx context.Context, do func() error) (err error) {
	log := s.log()
	store, err := s.backend.Images()
	if err != nil {
		return err
	}
	release, err := s.openSnapshots()
	if err != nil {
		return err
	}
	defer release() // when the sandbox is gone
	if s.driver, err = s.backend.Driver(ctx, s.runCommand.driver, log); err != nil {
		return err
	}
	s.sweep(ctx)
	if err := s.ensureImage(ctx, store); err != nil {
		return err
	}
	bases, err := s.backend.Bases()
	if err != nil {
		return err
	}
	manager, err := newManager(ctx, s.driver, store, bases, s.keepConsole, log)
	if err != nil {
		return err
	}
	s.sandbox, err = s.create(ctx, manager)
	if err != nil {
		return err
	}
	s.created = time.Now()
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTime)
		defer cancel()
		if cerr := manager.Close(cleanup); cerr != nil {
			cerr = &problem{err: fmt.Errorf("cannot remove the sandbox: %w", cerr), remedy: "bouvet doctor --fix"}
			if err == nil {
				err = cerr
			} else {
				s.warn(cerr)
			}
		}
	}()
	return do()
}

// sweep removes what killed runs have left, without a word: should it fail,
// doctor says more.
func (s *runSession) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, sweepTime)
	defer cancel()
	log := s.log()
	left, err := s.backend.Sweep(ctx, true, log)
	if log != nil && (err != nil || len(left) > 0) {
		log.LogAttrs(ctx, slog.LevelDebug, "leftovers swept", slog.Int("count", len(left)), slog.Any("error", err))
	}
}

// ensureImage builds the default image if it is missing and nothing else was
// asked for.
func (s *runSession) ensureImage(ctx context.Context, store *image.Store) error {
	name := s.runCommand.image
	if s.saved != nil {
		name = s.saved.Manifest.Image
	}
	if name == "" {
		name = bouvet.DefaultImage
	}
	info, err := store.Inspect(ctx, name)
	if err == nil {
		s.image = info
		return nil
	}
	if !errors.Is(err, image.ErrNotFound) {
		return fmt.Errorf("cannot use image %s: %w", quoted(name), err)
	}
	if name != image.DefaultName {
		return cannot(kindImageMissing, remedyImages+"; bouvet image import FILE "+printable(name, 128), "use image %s: %w", quoted(name), err)
	}
	if s.noBuild {
		return cannot(kindImageMissing, remedyBuildImages, "use the default image: %w", err)
	}
	if !s.quiet {
		s.say("the default image is not there yet and is built now, once; this takes some minutes")
	}
	s.image, err = s.buildDefault(ctx, store, image.BuildOptions{}, s.quiet)
	return err
}

// execute copies files in, runs the command and tells its end.
func (s *runSession) execute(ctx context.Context, cancel context.CancelCauseFunc, signals *interrupter, resized <-chan struct{}) error {
	who, err := s.account(ctx)
	if err != nil {
		return err
	}
	args := s.command(ctx)
	if err := s.copyIn(ctx, who); err != nil {
		return err
	}

	cmd := s.sandbox.Command(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.User, cmd.Timeout = who.dir, who.user, s.timeout.d
	cmd.Env = append(append([]string{}, s.image.Config.Env...), s.job.env...)
	stdout, stderr := &capture{limit: int64(s.maxOutput)}, &capture{limit: int64(s.maxOutput)}
	if s.json {
		cmd.Stdout, cmd.Stderr = stdout, stderr
	} else {
		cmd.Stdout, cmd.Stderr = s.stdout, s.stderr
	}
	if s.wantsStdin() && !s.job.codeFromStdin {
		cmd.Stdin = s.stdin
	}

	started := time.Now()
	err = s.withTerminal(cmd, cancel, func() error { return s.wait(cmd, signals, resized) }) //nolint:contextcheck // the Cmd has it
	end, err := endOf(ctx, cmd, err)
	if err != nil {
		if !s.json {
			return err
		}
		end = &outcome{ExitCode: exitFailure, message: err} // with the output so far
	}
	if s.json {
		end.fill(s, stdout, stderr, started)
	}
	s.outcome = end
	if s.snapshot != "" {
		if err := s.save(ctx, end); err != nil {
			return err
		}
	}
	return exitWith(end.ExitCode)
}

// withTerminal runs do with the terminal in the hands of cmd, and takes it back
// even if do panics.
func (s *runSession) withTerminal(cmd *bouvet.Cmd, cancel context.CancelCauseFunc, do func() error) (err error) {
	t := s.terminal
	if t == nil {
		return do()
	}
	cmd.TTY = true
	cmd.Size.Cols, cmd.Size.Rows = t.size()
	cmd.Env = append(terminalEnv(s.lookupEnv), cmd.Env...)
	cmd.Stdin = &escape{r: s.stdin, now: time.Now, pressed: func() { cancel(&signalError{syscall.SIGKILL}) }}
	if err := t.raw(); err != nil {
		return fmt.Errorf("cannot hand the terminal over: %w", err)
	}
	inOrder := false
	defer func() { t.restore(inOrder) }()
	err = do()
	var exit *bouvet.ExitError
	inOrder = err == nil || errors.As(err, &exit) && exit.Signal == 0 && !exit.TimedOut
	return err
}

// terminalEnv tells the command what kind of terminal it has.
func terminalEnv(lookup func(string) (string, bool)) []string {
	var env []string
	for _, key := range []string{"TERM", "COLORTERM"} {
		if v, ok := lookup(key); ok && v != "" && len(v) <= 64 && printable(v, 64) == v {
			env = append(env, key+"="+v)
		}
	}
	return env
}

// wait starts the command, passes signals and sizes on, and returns its end.
func (s *runSession) wait(cmd *bouvet.Cmd, signals *interrupter, resized <-chan struct{}) error {
	signals.begin()
	defer signals.over()
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	resizing := make(chan struct{})
	go func() {
		defer close(resizing)
		for {
			select {
			case <-resized:
				var size bouvet.WindowSize
				size.Cols, size.Rows = s.terminal.size()
				_ = cmd.Resize(size) // a command that has ended has no size
			case <-done:
				return
			}
		}
	}()
	defer func() { close(done); <-resizing }()
	return signals.during(cmd, cmd.Wait)
}

// A capture keeps the first bytes of a stream and drops the rest.
type capture struct {
	limit   int64
	kept    bytes.Buffer
	dropped int64
}

var _ io.Writer = (*capture)(nil)

func (c *capture) Write(p []byte) (int, error) {
	room := max(min(c.limit-int64(c.kept.Len()), int64(len(p))), 0)
	c.kept.Write(p[:room])
	c.dropped += int64(len(p)) - room
	return len(p), nil
}
