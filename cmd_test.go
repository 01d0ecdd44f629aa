package bouvet_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
)

// J1, J2, J6, 2.10: the ends of a command, as of os/exec.
func TestCmdEnds(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{Env: []string{"FROM=config"}})
	for _, tt := range []struct {
		name   string
		cmd    func(c *bouvet.Cmd)
		args   []string
		stdout string
		exit   bouvet.ExitError
	}{
		{"success", nil, []string{"true"}, "", bouvet.ExitError{}},
		{"output", nil, []string{"printf", "hi"}, "hi", bouvet.ExitError{}},
		{"exit code", nil, []string{"sh", "-c", "printf hi; exit 5"}, "hi", bouvet.ExitError{Code: 5}},
		{"stderr", nil, []string{"sh", "-c", "printf oops >&2; exit 1"}, "", bouvet.ExitError{Code: 1, Stderr: []byte("oops")}},
		{"signal", nil, []string{"sh", "-c", "kill -9 $$"}, "", bouvet.ExitError{Code: -1, Signal: syscall.SIGKILL}},
		{"no shell", nil, []string{"printf", "%s", "$HOME;*"}, "$HOME;*", bouvet.ExitError{}},
		{"dir", func(c *bouvet.Cmd) { c.Dir = dir }, []string{"pwd"}, dir + "\n", bouvet.ExitError{}},
		{"env", func(c *bouvet.Cmd) { c.Env = []string{"OWN=x"} }, []string{"sh", "-c", "echo $FROM $OWN"}, "config x\n", bouvet.ExitError{}},
		{"stdin", func(c *bouvet.Cmd) { c.Stdin = strings.NewReader("abc") }, []string{"cat"}, "abc", bouvet.ExitError{}},
		{"no stdin", nil, []string{"cat"}, "", bouvet.ExitError{}},
		{"T10 bytes", func(c *bouvet.Cmd) { c.Stdin = strings.NewReader("\x00\xff\xfe\n\r") }, []string{"cat"}, "\x00\xff\xfe\n\r", bouvet.ExitError{}},
		{"timeout", func(c *bouvet.Cmd) { c.Timeout = 100 * time.Millisecond }, []string{"sleep", "60"}, "", bouvet.ExitError{Code: -1, TimedOut: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.Command(t.Context(), tt.args[0], tt.args[1:]...)
			if tt.cmd != nil {
				tt.cmd(c)
			}
			out, err := c.Output()
			if string(out) != tt.stdout {
				t.Errorf("got output %q, want %q", out, tt.stdout)
			}
			var exit *bouvet.ExitError
			if !errors.As(err, &exit) {
				if err != nil || tt.exit.Code != 0 {
					t.Fatalf("got %v, want %+v", err, tt.exit)
				}
				return
			}
			if exit.Code != tt.exit.Code || exit.TimedOut != tt.exit.TimedOut || !bytes.Equal(exit.Stderr, tt.exit.Stderr) ||
				tt.exit.Signal != 0 && exit.Signal != tt.exit.Signal || exit.Error() == "" || exit.ExitCode() != tt.exit.Code {
				t.Errorf("got %+v, want %+v", exit, tt.exit)
			}
			if c.PID() <= 0 {
				t.Errorf("got pid %d", c.PID())
			}
		})
	}
}

// D6, 2.10: what could not be started is an error of Start.
func TestCmdStartFails(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	if err := os.WriteFile(dir+"/plain", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cmd  *bouvet.Cmd
		dir  string
		is   error
		text string
	}{
		{"no program", s.Command(t.Context(), "/no"), "", fs.ErrNotExist, "no such file or directory"},
		{"not executable", s.Command(t.Context(), dir+"/plain"), "", fs.ErrPermission, "permission denied"},
		{"no directory", s.Command(t.Context(), "true"), "/nope", nil, "chdir /nope"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			tt.cmd.Dir, tt.cmd.Stderr = tt.dir, &stderr
			err := tt.cmd.Start()
			var start *bouvet.StartError
			if !errors.As(err, &start) || !strings.Contains(start.Message, tt.text) || tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want a StartError: %s", err, tt.text)
			}
			if stderr.Len() > 0 {
				t.Errorf("the agent's text went to the command's stderr: %q", &stderr)
			}
		})
	}
}

func TestCmdMisuse(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	ctx := t.Context()
	for name, c := range map[string]*bouvet.Cmd{
		"no name":          s.Command(ctx, ""),
		"blank name":       s.Command(ctx, " "),
		"T10 NUL in args":  s.Command(ctx, "echo", "a\x00b"),
		"zero":             {Args: []string{"true"}},
		"bad id":           s.Attach(ctx, "../x", 0),
		"id that is long":  s.Attach(ctx, strings.Repeat("x", 65), 0),
		"attach with args": func() *bouvet.Cmd { c := s.Attach(ctx, "x", 0); c.Args = []string{"true"}; return c }(),
		"negative timeout": func() *bouvet.Cmd { c := s.Command(ctx, "true"); c.Timeout = -1; return c }(),
	} {
		if err := c.Start(); err == nil {
			t.Errorf("%s: started", name)
		}
	}
	c := s.Command(ctx, "true")
	if c.Wait() == nil || c.Signal(syscall.SIGTERM) == nil || c.Resize(bouvet.WindowSize{}) == nil || c.Release() == nil {
		t.Error("a command that was not started can be waited for")
	}
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if c.Start() == nil || c.Wait() == nil {
		t.Error("a command can be used twice")
	}
	if _, err := c.StdoutPipe(); err == nil {
		t.Error("a pipe can be opened after the start")
	}
	if err := c.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("got %v, want ErrProcessDone", err)
	}
}

// J5, J9: both directions at once, through pipes.
func TestCmdPipes(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	c := s.Command(t.Context(), "cat")
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 { // a conversation: no side waits for the other's end
		want := fmt.Sprintf("line %d\n", i)
		if _, err := io.WriteString(in, want); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
	}
	const size = 8 << 20
	sent, got := sha256.New(), sha256.New()
	go func() {
		block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		for range size / len(block) {
			sent.Write(block)
			if _, err := in.Write(block); err != nil {
				t.Error(err)
			}
		}
		if err := in.Close(); err != nil {
			t.Error(err)
		}
		if err := in.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	}()
	if n, err := io.Copy(got, out); n != size || err != nil {
		t.Errorf("got %d bytes, %v, want %d", n, err, size)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Error("bytes differ")
	}
	if _, err := in.Write([]byte("x")); err == nil {
		t.Error("wrote to a command that has ended")
	}
}

// T05, T09: a slow reader holds the command up, not memory; a failing writer ends
// the command and tells Wait.
func TestCmdBackPressure(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	c := s.Command(t.Context(), "sh", "-c", "head -c 64M /dev/zero; echo done > "+dir+"/done")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/done"); err == nil {
		t.Error("64 MiB were taken from the command while nobody read")
	}
	// Others are not held up by it.
	if r, err := s.Execute(t.Context(), "echo free"); err != nil || r.Stdout != "free\n" {
		t.Errorf("got %v, %v", r, err)
	}
	if n, err := io.Copy(io.Discard, out); n != 63<<20 || err != nil {
		t.Errorf("got %d bytes more, %v", n, err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}

	boom := errors.New("disk full")
	c = s.Command(t.Context(), "yes")
	c.Stdout = writerFunc(func([]byte) (int, error) { return 0, boom })
	if err := c.Run(); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	c = s.Command(t.Context(), "yes")
	c.OutputLimit = 1 << 20
	b, err := c.Output()
	if !errors.Is(err, bouvet.ErrOutputLimit) || len(b) != 1<<20 {
		t.Errorf("got %d bytes, %v, want 1 MiB and ErrOutputLimit", len(b), err)
	}
	if b, err = s.Command(t.Context(), "sh", "-c", "echo out; echo err >&2").CombinedOutput(); err != nil || !strings.Contains(string(b), "out\n") || !strings.Contains(string(b), "err\n") {
		t.Errorf("got %q, %v", b, err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// Signals reach the process group, also past input that the command never reads
// (T11).
func TestCmdSignal(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	for _, full := range []bool{false, true} {
		c := s.Command(t.Context(), "sh", "-c", `trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done`)
		if full {
			c.Stdin = endless{}
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(out, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if err := c.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		var exit *bouvet.ExitError
		if err := c.Wait(); !errors.As(err, &exit) || exit.Code != 7 {
			t.Errorf("full %v: got %v, want exit code 7", full, err)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// T11: the command ends while its input is still coming, or is not coming.
func TestCmdStdinOutlivesCommand(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	c := s.Command(t.Context(), "true")
	c.Stdin = endless{}
	if err := c.Run(); err != nil {
		t.Errorf("endless: %v", err)
	}
	// A reader that blocks and has no deadline: Wait does not wait for it.
	blocked, feed := io.Pipe()
	defer func() { _ = feed.Close() }()
	c = s.Command(t.Context(), "true")
	c.Stdin = blocked
	if err := c.Run(); err != nil {
		t.Errorf("blocked: %v", err)
	}
	// One that has is interrupted, and works again afterwards.
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	defer func() { _ = w.Close() }()
	c = s.Command(t.Context(), "true")
	c.Stdin = r
	if err := c.Run(); err != nil {
		t.Errorf("pipe: %v", err)
	}
	if _, err := w.WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(make([]byte, 8)); n != 1 || err != nil {
		t.Errorf("got %d, %v of the pipe afterwards, want it whole and without a deadline", n, err)
	}
	boom := errors.New("bad disk")
	c = s.Command(t.Context(), "cat")
	c.Stdin = io.MultiReader(strings.NewReader("x"), readerFunc(func([]byte) (int, error) { return 0, boom }))
	if err := c.Run(); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// J4, J5: a terminal, its size, and a new size.
func TestCmdTTY(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	c := s.Command(t.Context(), "sh", "-c", "stty size; read x; stty size; echo err >&2")
	c.TTY, c.Size = true, bouvet.WindowSize{Cols: 100, Rows: 30}
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("30 100\r\n"))
	if _, err := io.ReadFull(out, first); err != nil || string(first) != "30 100\r\n" {
		t.Errorf("got %q, %v, want size 30 100", first, err)
	}
	if err := c.Resize(bouvet.WindowSize{Cols: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(out)
	if err != nil || !strings.Contains(string(rest), "40 120\r\n") || !strings.HasSuffix(string(rest), "err\r\n") {
		t.Errorf("got %q, %v, want size 40 120 and both streams", rest, err)
	}
	if err := c.Wait(); err != nil {
		t.Error(err)
	}
}
