package image

import (
	"context"
	"errors"
	"fmt"
	"io"
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
// what the program itself started ends too.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = waitDelay
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	return cmd
}

// reap kills what is left of the command's group after it has been waited for.
func reap(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
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

// run runs a program to its end and returns what it wrote to stdout, which must
// not exceed 1 MiB.
func run(ctx context.Context, dir string, log func(string), name string, args ...string) (string, error) {
	cmd := command(ctx, name, args...)
	cmd.Dir = dir
	stderr := &tail{line: log}
	stdout := &limitedBuffer{left: 1 << 20}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	err := cmd.Run()
	reap(cmd)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if err != nil {
		return "", stderr.explain(name, err)
	}
	return stdout.String(), nil
}

type limitedBuffer struct {
	strings.Builder
	left int
}

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, io.ErrShortWrite
	}
	return b.Builder.Write(p)
}
