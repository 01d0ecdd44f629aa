package kvm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

const (
	// probeName is the argv[0] that makes a program into the process with the guest.
	probeName = "bouvet-kvm"
	// exitUnusable is its status after it has said why.
	exitUnusable = 3
	// maxSaid bounds what it may say, in bytes.
	maxSaid = 4 << 10
	// killTime is how long its end may take after a SIGKILL.
	killTime = time.Second
)

// Every program that can Check can be the process with the guest too, with nothing
// for its main to remember: without this one would run itself again and again.
func init() {
	if len(os.Args) == 1 && os.Args[0] == probeName {
		os.Exit(report(probe()))
	}
}

// report tells the parent, and returns the exit status.
func report(e *Error) int {
	if e == nil {
		return 0
	}
	fmt.Printf("%s\n%s\n", oneLine(e.Reason), oneLine(e.Remedy))
	return exitUnusable
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Check runs a guest under KVM and reports why that is impossible: nil, or an *Error,
// or ctx's error. It returns within Time, even when the kernel never gives the guest's
// processor back.
func Check(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, Time-killTime)
	defer cancel()
	// A process that cannot be killed must not hold us up: the bound is run's.
	err := run(bounded, probeCommand(context.WithoutCancel(ctx)))
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil { // not a nil *Error in an error
		return nil
	}
	return err
}

func probeCommand(ctx context.Context) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{probeName}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.WaitDelay = killTime
	return cmd
}

// run runs cmd, and kills it when ctx ends.
func run(ctx context.Context, cmd *exec.Cmd) *Error {
	said := &head{}
	cmd.Stdout = said
	dieWithParent(cmd)
	started, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel takes the end of the thread that started it for its parent's.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return &Error{Reason: fmt.Sprintf("the trial does not start: %v", err)}
	}
	select {
	case err := <-ended:
		return verdict(err, cmd.ProcessState.ExitCode(), said)
	case <-ctx.Done():
	}
	_ = cmd.Process.Kill()
	timer := time.NewTimer(killTime)
	defer timer.Stop()
	stuck := broken("a guest does not come to its end")
	stuck.TimedOut = true
	select {
	case <-ended: //nolint:errcheck // killed
	case <-timer.C:
		stuck.Reason += fmt.Sprintf(", and process %d cannot be killed", cmd.Process.Pid)
	}
	return stuck
}

func verdict(err error, code int, said *head) *Error {
	switch {
	case err == nil:
		return nil
	case code == exitUnusable:
		reason, remedy, _ := strings.Cut(string(said.kept), "\n")
		return &Error{Reason: reason, Remedy: strings.TrimSpace(remedy)}
	default:
		return broken("the process with the guest ends by accident: %v", err)
	}
}

// head keeps the first maxSaid bytes.
type head struct{ kept []byte }

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	h.kept = append(h.kept, p[:min(maxSaid-len(h.kept), len(p))]...)
	return len(p), nil
}
