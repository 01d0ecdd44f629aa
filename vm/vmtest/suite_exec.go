package vmtest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet"
)

var execSections = []section{
	{"results", execResults},
	{"ends", execEnds},
	{"streams as it goes", execStreams},
	{"cancelled", execCancelled},
	{"T16 fifty at once", execConcurrently},
	{"terminal", execTerminal},
	{"languages", execLanguages},
}

// Whole commands over JSON-RPC.
func execResults(e *env) {
	g := e.boot(e.config())
	for _, tt := range []struct {
		cmd, stdout, stderr string
		exit                int32
	}{
		{"true", "", "", 0},
		{"echo out; echo err >&2; exit 7", "out\n", "err\n", 7},
		{"printf '%s' \"$0\"", "sh", "", 0},
		{"cat", "", "", 0},
		{"kill -9 $$", "", "", -1},
		{"/no/such/program", "", "", 127},
	} {
		r, err := g.Exec(e.context(), tt.cmd, nil)
		if err != nil {
			e.Errorf("%s: %v", tt.cmd, err)
			continue
		}
		if r.ExitCode != tt.exit || r.Stdout != tt.stdout || (tt.stderr != "" && r.Stderr != tt.stderr) {
			e.Errorf("%s: got %+v, want %+v", tt.cmd, r, tt)
		}
	}
	_, err := g.Exec(e.context(), "sleep 4711", &bouvet.ExecOptions{Timeout: 50 * time.Millisecond})
	if !errors.Is(err, bouvet.ErrTimedOut) {
		e.Errorf("timeout: got %v, want ErrTimedOut", err)
	}
}

// Streamed commands, as of os/exec.
func execEnds(e *env) {
	g := e.boot(e.config())
	dir := g.tempDir()
	for _, tt := range []struct {
		name, stdin, stdout string
		args                []string
		exit                bouvet.ExitError
	}{
		{"success", "", "", []string{"true"}, bouvet.ExitError{}},
		{"no shell", "", "$HOME *", []string{"printf", "%s", "$HOME *"}, bouvet.ExitError{}},
		{"stdin", "to\x00and\xfffro\n", "to\x00and\xfffro\n", []string{"cat"}, bouvet.ExitError{}},
		{"directory and environment", "", dir + " x=y\n", []string{"sh", "-c", "echo $PWD $BOTH"}, bouvet.ExitError{}},
		{"exit code", "", "out", []string{"sh", "-c", "printf out; exit 200"}, bouvet.ExitError{Code: 200}},
		{"signal", "", "", []string{"sh", "-c", "kill -TERM $$"}, bouvet.ExitError{Code: -1, Signal: syscall.SIGTERM}},
	} {
		c := g.Command(e.context(), tt.args[0], tt.args[1:]...)
		c.Dir, c.Env, c.Stdin = dir, []string{"BOTH=x=y"}, strings.NewReader(tt.stdin)
		out, err := c.Output()
		if string(out) != tt.stdout {
			e.Errorf("%s: got output %q, want %q", tt.name, out, tt.stdout)
		}
		var exit *bouvet.ExitError
		switch {
		case err == nil && tt.exit.Code == 0:
		case !errors.As(err, &exit):
			e.Errorf("%s: got %v, want %+v", tt.name, err, tt.exit)
		case exit.Code != tt.exit.Code || exit.Signal != tt.exit.Signal:
			e.Errorf("%s: got %+v, want %+v", tt.name, exit, tt.exit)
		}
	}
	if err := g.Command(e.context(), "/no/such/program").Run(); err == nil {
		e.Error("a program that does not exist: got no error")
	}
	g.ping()
}

// Output comes while the command runs, and input reaches it.
func execStreams(e *env) {
	g := e.boot(e.config())
	c := g.Command(e.context(), "cat")
	stdin, err := c.StdinPipe()
	if err != nil {
		e.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		e.Fatal(err)
	}
	if err := c.Start(); err != nil {
		e.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	for i := range 20 {
		want := fmt.Sprintf("line %d\n", i)
		if _, err := io.WriteString(stdin, want); err != nil {
			e.Fatal(err)
		}
		if got, err := r.ReadSlice('\n'); string(got) != want {
			e.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	if err := stdin.Close(); err != nil {
		e.Error(err)
	}
	if rest, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		e.Errorf("got %q, %v, want the end", rest, err)
	}
	if err := c.Wait(); err != nil {
		e.Error(err)
	}
}

// A command that is cancelled is gone from the guest, with what it started.
func execCancelled(e *env) {
	g := e.boot(e.config())
	dir := g.tempDir()
	ctx, cancel := context.WithCancel(e.context())
	c := g.Command(ctx, "sh", "-c", "sleep 4711 & echo $! > "+dir+"/child; echo up; wait")
	stdout, err := c.StdoutPipe()
	if err != nil {
		e.Fatal(err)
	}
	if err := c.Start(); err != nil {
		e.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadSlice('\n'); string(line) != "up\n" {
		e.Fatalf("got %q, %v", line, err)
	}
	cancel()
	if err := c.Wait(); !errors.Is(err, context.Canceled) {
		e.Errorf("Wait: got %v, want Canceled", err)
	}
	e.eventually("the command and its child are gone", func() bool {
		_, err := g.try("kill -0 $(cat " + dir + "/child)")
		return err != nil && len(g.running(c.PID())) == 0
	})
}

// Many commands at once get their own output and exit code.
func execConcurrently(e *env) {
	g := e.boot(e.config())
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			c := g.Command(e.context(), "sh", "-c", "read x; echo $x; exit "+fmt.Sprint(i))
			want := fmt.Sprintf("number %d\n", i)
			c.Stdin = strings.NewReader(want)
			out, err := c.Output()
			code := 0
			if exit, ok := errors.AsType[*bouvet.ExitError](err); ok {
				code, err = exit.Code, nil
			}
			if err != nil || code != i || string(out) != want {
				e.Errorf("command %d: got %q, exit %d, %v", i, out, code, err)
			}
		})
	}
	all.Wait()
}

// A terminal has a size that can change, and an end of input that loses nothing.
func execTerminal(e *env) {
	g := e.boot(e.config())
	c := g.Command(e.context(), "sh", "-c", "tty -s && echo terminal; stty size; read x; stty size; cat; echo over")
	c.TTY, c.Size = true, bouvet.WindowSize{Cols: 101, Rows: 37}
	stdin, err := c.StdinPipe()
	if err != nil {
		e.Fatal(err)
	}
	stdout, err := c.StdoutPipe()
	if err != nil {
		e.Fatal(err)
	}
	if err := c.Start(); err != nil {
		e.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	want := func(text string) {
		e.Helper()
		for {
			line, err := r.ReadSlice('\n')
			if err != nil {
				e.Fatalf("got %q, %v, want %q", line, err, text)
			}
			if strings.TrimSpace(string(line)) == text {
				return
			}
		}
	}
	want("terminal")
	want("37 101")
	if err := c.Resize(bouvet.WindowSize{Cols: 90, Rows: 20}); err != nil {
		e.Error(err)
	}
	if _, err := io.WriteString(stdin, "go on\n"); err != nil {
		e.Fatal(err)
	}
	want("20 90")
	if err := stdin.Close(); err != nil {
		e.Fatal(err)
	}
	want("over")
	if err := c.Wait(); err != nil {
		e.Error(err)
	}
}

// The interpreters of the image, where it is a real one.
func execLanguages(e *env) {
	e.sandboxed()
	g := e.boot(e.config())
	for lang, code := range map[string]string{"python": "print(6 * 7)", "bash": "echo $((6 * 7))", "sh": "echo $((6 * 7))"} {
		if r, err := g.ExecCode(e.context(), lang, code, nil); err != nil || r.Stdout != "42\n" {
			e.Errorf("%s: got %+v, %v, want 42", lang, r, err)
		}
	}
}
