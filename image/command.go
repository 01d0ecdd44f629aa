package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// waitDelay is how long a program that was told to end may hold its pipes open.
const waitDelay = 5 * time.Second

// command returns a command in a process group of its own, which ends with ctx:
// what the program itself started ends too, by the given signal.
func command(ctx context.Context, end syscall.Signal, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = waitDelay
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, end)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd
}

// reap kills what is left of the command's group after it has been waited for,
// once it has had time to clean up.
func reap(cmd *exec.Cmd, grace time.Duration) {
	if cmd.Process == nil {
		return
	}
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for grace > 0 && syscall.Kill(-cmd.Process.Pid, 0) == nil {
		select {
		case <-tick.C:
		case <-deadline.C:
			grace = 0
		}
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
}

// tail keeps the end of a program's output, for errors, and shows each complete
// line to a function.
type tail struct {
	mu    sync.Mutex
	line  func(string)
	lines []string
	part  []byte
}

const (
	tailLines = 12
	lineBytes = 512
)

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range p {
		if b != '\n' && b != '\r' {
			if len(t.part) < lineBytes {
				t.part = append(t.part, b)
			}
			continue
		}
		if line := strings.TrimSpace(string(t.part)); line != "" {
			if t.line != nil {
				t.line(line)
			}
			if t.lines = append(t.lines, line); len(t.lines) > tailLines {
				t.lines = t.lines[1:]
			}
		}
		t.part = t.part[:0]
	}
	return len(p), nil
}

// explain adds the end of the output to the error of the program that wrote it.
func (t *tail) explain(name string, err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := strings.Join(append(t.lines, string(t.part)), "\n  ")
	return fmt.Errorf("%s failed: %w\n  %s", name, err, strings.TrimSpace(out))
}

// run runs a program in dir to its end. Its output appears in the error alone.
func run(ctx context.Context, dir, name string, args ...string) error {
	cmd := command(ctx, syscall.SIGTERM, name, args...)
	cmd.Dir = dir
	var out tail
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	reap(cmd, 0)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return out.explain(name, err)
	}
	return nil
}
