package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/vm"
)

// A world is everything outside the program that a command reaches.
type world struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	// notify delivers signals until stop is called.
	notify  func(...os.Signal) (c <-chan os.Signal, stop func())
	backend backend
	// serveExe is the Exe of the daemon's options; empty for this program.
	serveExe string

	// debug is the flag of that name.
	debug bool
}

func systemWorld() *world {
	return &world{
		stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookupEnv: os.LookupEnv,
		notify:    notifySignals,
		backend:   localBackend{},
	}
}

// notifySignals keeps room for a burst: a signal that does not fit is dropped.
func notifySignals(signals ...os.Signal) (<-chan os.Signal, func()) {
	c := make(chan os.Signal, 16)
	signal.Notify(c, signals...)
	return c, func() { signal.Stop(c) }
}

func (w *world) log() *slog.Logger {
	if !w.debug {
		return nil
	}
	return slog.New(slog.NewTextHandler(w.stderr, &slog.HandlerOptions{Level: slog.LevelDebug - 4}))
}

// interruptible returns a context that the first signal to end ends, with a
// signalError as its cause. A second one ends the program at once.
func (w *world) interruptible(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals, stop := w.notify(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case s := <-signals:
			cancel(&signalError{asSignal(s)})
			stop() // the default action from here on
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		<-ended
		stop()
		cancel(nil)
	}
}

func asSignal(s os.Signal) syscall.Signal {
	if n, ok := s.(syscall.Signal); ok {
		return n
	}
	return syscall.SIGTERM
}

// interrupted replaces err by the signal that caused it, if one did.
func interrupted(ctx context.Context, err error) error {
	var sig *signalError
	if err != nil && errors.As(context.Cause(ctx), &sig) {
		return &exitError{code: sig.code(), err: sig}
	}
	return err
}

// say prints a line for the user to standard error.
func (w *world) say(text string) {
	writeText(w.stderr, "bouvet: "+printable(text, maxMessage)+"\n")
}

// warn is say for what goes wrong without ending the command.
func (w *world) warn(err error) {
	e := describe(err)
	w.say("warning: " + e.Message)
	if e.Remedy != "" {
		w.try(e.Remedy)
	}
}

func (w *world) try(remedy string) {
	writeText(w.stderr, "try: "+printable(remedy, maxMessage)+"\n")
}

// printf prints to standard output as it comes.
func (w *world) printf(format string, args ...any) {
	writeText(w.stdout, fmt.Sprintf(format, args...))
}

// table prints rows in columns.
func (w *world) table(rows [][]string) error {
	t := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i, text := range row {
			row[i] = cell(text)
		}
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return err
		}
	}
	return t.Flush()
}

// writeText writes where nothing can be done about a failure.
func writeText(w io.Writer, s string) { _, _ = io.WriteString(w, s) }

// report tells the user about the error that ends the command.
func (w *world) report(err error, asJSON bool) {
	e := describe(err)
	if asJSON {
		_ = writeJSON(w.stdout, map[string]jsonError{"error": e})
		return
	}
	w.say(e.Message)
	if e.Remedy != "" {
		w.try(e.Remedy)
	}
}

// jsonError is the form of an error under --json.
type jsonError struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Kinds of errors that are the command line's own; see bouvet.ErrorKinds for the
// others.
const (
	kindUsage           = "usage"
	kindInterrupted     = "interrupted"
	kindImageMissing    = "image_not_found"
	kindImageInUse      = "image_in_use"
	kindImageCorrupt    = "image_corrupt"
	kindImageRefused    = "image_refused"
	kindKernelMissing   = "kernel_not_found"
	kindKernelFetch     = "kernel_fetch"
	kindKernelBuild     = "kernel_build"
	kindSnapshotMissing = "snapshot_not_found"
	kindSnapshotInUse   = "snapshot_in_use"
	kindSnapshotExists  = "snapshot_exists"
	kindSnapshotRefused = "snapshot_refused"
	kindFile            = "file"
	kindPermission      = "permission"
	kindMachineGone     = "machine_gone"
	kindOutOfMemory     = "out_of_memory"
	kindNotStarted      = "not_started"
	kindCheckFailed     = "check_failed"
	kindDaemonRuns      = "daemon_runs"
	kindDatabase        = "database"
	kindKeyMissing      = "key_not_found"
	remedyDoctor        = "bouvet doctor"
	remedyMemory        = "more memory (--memory 1G)"
	remedyImages        = "bouvet image ls"
	remedySnapshots     = "bouvet snapshot ls"
	remedyBuildImages   = "bouvet image build-default"
)

// knownErrors maps errors of the floors below to a kind and a remedy; the first
// row that matches counts.
var knownErrors = []struct {
	err          error
	kind, remedy string
}{
	{image.ErrInUse, kindImageInUse, "again when the sandboxes that use it have ended"},
	{image.ErrCorrupt, kindImageCorrupt, "bouvet image rm NAME, then import it again (the default one: bouvet image build-default --force)"},
	{image.ErrRefused, kindImageRefused, "bouvet image import --help"},
	{image.ErrNotFound, kindImageMissing, remedyImages},
	{snapstore.ErrNotFound, kindSnapshotMissing, remedySnapshots},
	{snapstore.ErrInUse, kindSnapshotInUse, "again when the sandboxes that use it have ended"},
	{snapstore.ErrExists, kindSnapshotExists, "another name, or bouvet snapshot rm NAME"},
	{vm.ErrBadSnapshot, kindSnapshotRefused, "bouvet snapshot inspect NAME; then make it again with bouvet run --snapshot NAME"},
	{kernel.ErrNone, kindKernelMissing, "bouvet kernel fetch"},
	{vm.ErrOutOfMemory, kindMachineGone, remedyMemory},
	{vm.ErrGone, kindMachineGone, remedyMemory + "; " + remedyDoctor + " if that does not help"},
	{bouvet.ErrAgentTimeout, "", remedyDoctor},
	{bouvet.ErrUnsupported, "", remedyDoctor},
	{bouvet.ErrVM, "", remedyDoctor},
	{syscall.ENOSPC, kindFile, "bouvet image ls; bouvet doctor --fix; or BOUVET_STATE_DIR on a larger file system"},
	{fs.ErrPermission, kindPermission, "the user that it belongs to, or BOUVET_STATE_DIR set to a directory of yours"},
}

// describe says what a user should know about err.
func describe(err error) jsonError {
	e := jsonError{Message: strings.TrimSpace(err.Error())}
	if p, ok := errors.AsType[*problem](err); ok {
		e.Kind, e.Remedy = p.kind, p.remedy
	}
	if _, ok := errors.AsType[*signalError](err); ok {
		e.Kind = kindInterrupted
		return e
	}
	if path, ok := errors.AsType[*fs.PathError](err); ok && path.Path == os.Stdout.Name() && e.Kind == "" {
		e.Kind, e.Remedy = kindFile, "an output that can be written to"
		return e
	}
	for _, known := range knownErrors {
		if errors.Is(err, known.err) {
			if e.Kind == "" {
				e.Kind = known.kind
			}
			if e.Remedy == "" {
				e.Remedy = known.remedy
			}
			break
		}
	}
	if e.Kind == "" {
		e.Kind = bouvet.Kind(err).Name
	}
	return e
}
