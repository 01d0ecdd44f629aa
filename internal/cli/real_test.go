package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/bouvet-run/bouvet/vm"
)

// bouvetCommand is this program as bouvet, with real sandboxes whose state is in
// a directory of the test's own.
func bouvetCommand(t *testing.T, state string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, args...)
	cmd.Args[0] = "bouvet"
	cmd.Env = append(os.Environ(), realEnv(t, state)...)
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// machines are the IDs of the machines in a state directory.
func machines(t *testing.T, state string) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(state, "machines"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		ids = append(ids, e.Name())
	}
	return ids
}

// traces are what exists of the machines of a state directory anywhere:
// processes, mounts, directories, and cgroups of those ids.
func traces(t *testing.T, state string, ids ...string) []string {
	t.Helper()
	var found []string
	for _, id := range machines(t, state) {
		found = append(found, "directory "+id)
	}
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range cmdlines {
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(state)) && bytes.Contains(b, []byte("runsc")) {
			found = append(found, fmt.Sprintf("process %s %q", path, b))
		}
	}
	if mounts, _ := os.ReadFile("/proc/self/mounts"); bytes.Contains(mounts, []byte(state)) {
		found = append(found, "mounts below "+state)
	}
	for _, id := range ids {
		for _, pattern := range []string{"/sys/fs/cgroup/*/bouvet/", "/sys/fs/cgroup/bouvet/"} {
			dirs, _ := filepath.Glob(pattern + id)
			found = append(found, dirs...)
		}
	}
	return found
}

// eventually waits for a condition, which is checked often.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// kill -9 of bouvet run itself: the next run leaves nothing, and so does doctor
// --fix. T26.
func TestKilledRun(t *testing.T) {
	for _, tt := range []struct {
		name  string
		clean []string
	}{
		{"next run", []string{"run", "--", "true"}},
		{"doctor --fix", []string{"doctor", "--fix"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := t.TempDir()
			if err := os.Chmod(state, 0o700); err != nil {
				t.Fatal(err)
			}
			cmd := bouvetCommand(t, state, "run", "--", "sh", "-c", "echo up; sleep 1000")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
				t.Fatal(err)
			}
			ids := machines(t, state)
			if len(ids) != 1 {
				t.Fatalf("machines %q, want one", ids)
			}
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()

			if tt.clean[0] == "doctor" {
				var found diagnosis
				report, _ := bouvetCommand(t, state, "doctor", "--json").Output()
				if err := json.Unmarshal(report, &found); err != nil {
					t.Fatalf("%v in %q", err, report)
				}
				if !mentions(found.Leftovers, ids[0]) {
					t.Errorf("doctor found %+v, want something of %s", found.Leftovers, ids[0])
				}
			}
			if out, err := bouvetCommand(t, state, tt.clean...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if left := traces(t, state, ids...); len(left) > 0 {
				t.Errorf("left after %s: %q, want nothing", tt.name, left)
			}
		})
	}
}

func mentions(leftovers []vm.Leftover, id string) bool {
	for _, l := range leftovers {
		if l.Machine == id {
			return true
		}
	}
	return false
}

// kill -9 of the sandbox's own processes is told as what it is. T26.
func TestKilledSandbox(t *testing.T) {
	state := t.TempDir()
	cmd := bouvetCommand(t, state, "run", "--", "sh", "-c", "echo up; sleep 1000")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, len("up\n"))); err != nil {
		t.Fatal(err)
	}
	ids := machines(t, state)
	killed := 0
	cmdlines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range cmdlines {
		if b, _ := os.ReadFile(path); bytes.Contains(b, []byte(state)) && bytes.Contains(b, []byte("runsc-sandbox\x00")) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	if killed == 0 {
		t.Fatal("found no process of the sandbox to kill")
	}
	_ = cmd.Wait()
	if got := cmd.ProcessState.ExitCode(); got != exitFailure {
		t.Errorf("exit code %d, want %d", got, exitFailure)
	}
	if want := "bouvet: the sandbox died before the command ended: "; !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("standard error is %q, want %q", stderr.String(), want)
	}
	if left := traces(t, state, ids...); len(left) > 0 {
		t.Errorf("left: %q, want nothing", left)
	}
}

// T09, T14: nobody reads our output, and still the run ends in time and by signals,
// and nothing is left while the last words wait for a reader.
func TestStuckOutput(t *testing.T) {
	for _, tt := range []struct {
		name    string
		args    []string
		signals []syscall.Signal
		want    int
	}{
		{"timeout", []string{"--timeout", "1s", "--", "yes"}, nil, exitTimeout},
		{"SIGTERM", []string{"--", "yes"}, []syscall.Signal{syscall.SIGTERM}, 143},
		{"SIGINT twice", []string{"--", "yes"}, []syscall.Signal{syscall.SIGINT, syscall.SIGINT}, 130},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state := t.TempDir()
			cmd := bouvetCommand(t, state, append([]string{"run"}, tt.args...)...)
			out, stdout, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = out.Close() }()
			cmd.Stdout = stdout
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			_ = stdout.Close()
			if _, err := io.ReadFull(out, make([]byte, len("y\n"))); err != nil {
				t.Fatal(err)
			}
			eventually(t, "a full pipe", func() bool { n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ); return err == nil && n > 32<<10 })
			for _, s := range tt.signals {
				if err := cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond) // two at once would be one
			}
			ended := make(chan struct{})
			go func() { defer close(ended); _ = cmd.Wait() }()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				_ = cmd.Process.Kill()
				t.Fatal("the run does not end")
			}
			if got := cmd.ProcessState.ExitCode(); got != tt.want {
				t.Errorf("exit code %d, want %d", got, tt.want)
			}
			if left := traces(t, state); len(left) > 0 {
				t.Errorf("left: %q, want nothing", left)
			}
		})
	}
	t.Run("T05 JSON", func(t *testing.T) {
		state := t.TempDir()
		cmd := bouvetCommand(t, state, "run", "--json", "--", "sh", "-c", "head -c 1M /dev/urandom")
		out, stdout, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = out.Close() }()
		cmd.Stdout = stdout
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = stdout.Close()
		eventually(t, "a full pipe", func() bool { n, err := unix.IoctlGetInt(int(out.Fd()), unix.TIOCINQ); return err == nil && n > 32<<10 })
		if left := traces(t, state); len(left) > 0 {
			t.Errorf("while nobody reads the outcome there is: %q, want nothing", left)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGTERM {
			t.Errorf("got %v, want an end by SIGTERM", cmd.ProcessState)
		}
	})
}

func TestTwoRunsAtOnce(t *testing.T) {
	state := t.TempDir()
	var wg sync.WaitGroup
	for i := range 2 {
		cmd := bouvetCommand(t, state, "run", "--", "sh", "-c", fmt.Sprintf("sleep 0.3; echo %d", i))
		wg.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != fmt.Sprintf("%d\n", i) {
				t.Errorf("run %d printed %q, %v", i, out, err)
			}
		})
	}
	wg.Wait()
	if left := traces(t, state); len(left) > 0 {
		t.Errorf("left: %q, want nothing", left)
	}
}

// A ptyRun is bouvet on a terminal.
type ptyRun struct {
	cmd    *exec.Cmd
	keys   *os.File
	tty    *os.File
	before *term.State
	screen syncBuffer
	state  string
}

func startOnTerminal(t *testing.T, args ...string) *ptyRun {
	t.Helper()
	p := &ptyRun{state: t.TempDir()}
	p.cmd = bouvetCommand(t, p.state, args...)
	p.cmd.Env = append(p.cmd.Env, "TERM=xterm-256color")
	var err error
	if p.keys, p.tty, err = pty.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.tty.Close(); _ = p.keys.Close() })
	if err := pty.Setsize(p.keys, &pty.Winsize{Cols: 90, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	if p.before, err = term.GetState(int(p.tty.Fd())); err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.tty, p.tty, p.tty
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = io.Copy(&p.screen, p.keys) }()
	return p
}

func (p *ptyRun) shows(t *testing.T, text string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !strings.Contains(p.screen.String(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("the screen never showed %q: %q", text, p.screen.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (p *ptyRun) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.keys.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end, and checks that all is as it was before.
func (p *ptyRun) ends(t *testing.T, want int) {
	t.Helper()
	_ = p.cmd.Wait()
	if got := p.cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit code %d, want %d; screen: %q", got, want, p.screen.String())
	}
	after, err := term.GetState(int(p.tty.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(*after), fmt.Sprint(*p.before); got != want {
		t.Errorf("the terminal is %s, want %s as before", got, want)
	}
	if left := traces(t, p.state); len(left) > 0 {
		t.Errorf("left: %q, want nothing", left)
	}
}

// T51: whatever ends the command, the terminal is given back.
func TestTerminal(t *testing.T) {
	t.Run("a shell", func(t *testing.T) {
		p := startOnTerminal(t, "run")
		p.shows(t, "$ ")
		p.press(t, "stty size; echo $TERM; id -un; tty\r")
		p.shows(t, "20 90\r\nxterm-256color\r\nuser\r\n/dev/pts/")
		if err := pty.Setsize(p.keys, &pty.Winsize{Cols: 70, Rows: 10}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the new size", func() bool {
			p.press(t, "stty size\r")
			time.Sleep(50 * time.Millisecond)
			return strings.Contains(p.screen.String(), "10 70\r\n")
		})
		p.press(t, "exit 5\r")
		p.ends(t, 5)
	})
	t.Run("Ctrl-C goes to the command", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--", "sh", "-c", "trap 'echo caught; exit 4' INT; echo up; while :; do sleep 0.05; done")
		p.shows(t, "up\r\n")
		p.press(t, "\x03")
		p.ends(t, 4)
	})
	t.Run("Ctrl-C ends a command", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--", "sh", "-c", "echo up; exec sleep 1000")
		p.shows(t, "up\r\n")
		p.press(t, "\x03")
		p.ends(t, 130)
	})
	t.Run("Ctrl-C ends one without a terminal", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--tty=false", "--", "sh", "-c", "echo up; exec sleep 1000")
		p.shows(t, "up\r\n")
		p.press(t, "\x03")
		p.ends(t, 130)
	})
	t.Run("a second Ctrl-C by force", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--tty=false", "--", "sh", "-c", "trap 'echo no' INT; echo up; while :; do sleep 0.05; done")
		p.shows(t, "up\r\n")
		p.press(t, "\x03")
		p.shows(t, "no\r\n")
		p.press(t, "\x03")
		p.ends(t, 130)
	})
	t.Run("Ctrl-] three times ends one that does not let go", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--", "sh", "-c", "trap '' INT QUIT TERM HUP; stty raw; echo up; while :; do sleep 0.05; done")
		p.shows(t, "up\n")
		p.press(t, "\x1d\x1d\x1d")
		p.ends(t, 137)
	})
	t.Run("SIGTERM", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--", "sh", "-c", "stty raw; echo up; exec sleep 1000")
		p.shows(t, "up\n")
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.ends(t, 143)
	})
	t.Run("the sandbox dies", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--memory", "64M", "--", "sh", "-c", "for d in /tmp ~ /dev/shm; do head -c 500M /dev/zero >$d/x; done")
		p.ends(t, exitFailure)
		p.shows(t, "out of memory")
	})
	t.Run("before there is a command", func(t *testing.T) {
		p := startOnTerminal(t, "run", "--", "true")
		eventually(t, "the machine", func() bool { return len(machines(t, p.state)) > 0 || p.cmd.ProcessState != nil })
		p.press(t, "\x03")
		_ = p.cmd.Wait()
		// Whether the key came in time or not, nothing is left.
		if left := traces(t, p.state); len(left) > 0 {
			t.Errorf("left: %q, want nothing", left)
		}
	})
}
