package cli

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// newFakeRun is a world whose sandboxes are the real agent in this process: the
// commands run on this host, as this user.
func newFakeRun(t *testing.T, opts vmtest.FakeOptions) (*testWorld, *fakeBackend, *vmtest.Fake) {
	t.Helper()
	b := newFakeBackend(t)
	fake := vmtest.NewFake(t, opts)
	b.driver = fake
	_, err := b.store.ImportTar(t.Context(), image.DefaultName, tarOf("etc/hostname", "test\n"), image.ImportOptions{
		Config: image.Config{User: "0:0", WorkDir: "/"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return newTestWorld(t, b), b, fake
}

func skipUnlessRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the fake sandbox runs commands as 0:0; run the tests as root")
	}
}

// C: the exit code is the command's, or a shell's for one that did not start.
func TestRunExitCodes(t *testing.T) {
	skipUnlessRoot(t)
	dir := t.TempDir()
	noExec := writeFile(t, dir, "data", "not a program")
	for _, tt := range []struct {
		name string
		args []string
		want int
		says string
	}{
		{"success", []string{"--", "true"}, 0, ""},
		{"failure", []string{"--", "sh", "-c", "exit 7"}, 7, ""},
		{"without dashes", []string{"sh", "-c", "exit 8"}, 8, ""},
		{"255", []string{"--", "sh", "-c", "exit 255"}, 255, ""},
		{"signal", []string{"--", "sh", "-c", "kill -9 $$"}, 128 + 9, ""},
		{"not found by path", []string{"--", "/no/such/program"}, exitNotFound, "cannot run"},
		{"not found by name", []string{"--", "no-such-program"}, exitNotFound, "cannot run"},
		{"not executable", []string{"--", noExec}, exitNotExecutable, "permission denied"},
		{"a directory", []string{"--", dir}, exitNotExecutable, "cannot run"},
		{"no such directory", []string{"-w", "/no/such", "--", "true"}, exitFailure, "chdir"},
		{"no such user", []string{"-u", "nobody-at-all", "--", "true"}, exitFailure, "cannot run"},
		{"timeout", []string{"--timeout", "200ms", "--", "sleep", "100"}, exitTimeout, "ended after 200ms"},
		{"code", []string{"--lang", "sh", "--code", "exit $1", "4"}, 4, ""},
		{"empty code", []string{"--lang", "sh", "--code", ""}, 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, _, fake := newFakeRun(t, vmtest.FakeOptions{})
			if got := w.run(t, append([]string{"run"}, tt.args...)...); got != tt.want {
				t.Errorf("exit code %d, want %d; standard error: %s", got, tt.want, w.err.String())
			}
			if got := w.err.String(); !strings.Contains(got, tt.says) || tt.says == "" && got != "" {
				t.Errorf("standard error is %q, want %q in it", got, tt.says)
			}
			if got := fake.Living(); got != 0 {
				t.Errorf("%d machines live on, want 0", got)
			}
		})
	}
}

func TestRunStreams(t *testing.T) {
	skipUnlessRoot(t)
	t.Run("output is apart and untouched", func(t *testing.T) {
		w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
		w.run(t, "run", "--", "sh", "-c", `printf '\033[31m\377\000out'; printf 'err' >&2`)
		if got, want := w.out.String(), "\x1b[31m\xff\x00out"; got != want {
			t.Errorf("standard output is %q, want %q", got, want)
		}
		if got, want := w.err.String(), "err"; got != want {
			t.Errorf("standard error is %q, want %q", got, want)
		}
	})
	t.Run("input arrives and ends", func(t *testing.T) {
		w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
		w.stdin = strings.NewReader(strings.Repeat("x", 1<<20))
		w.run(t, "run", "--", "wc", "-c")
		if got, want := strings.TrimSpace(w.out.String()), "1048576"; got != want {
			t.Errorf("the command counted %q, want %q", got, want)
		}
	})
	t.Run("code from standard input leaves none for it", func(t *testing.T) {
		w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
		w.stdin = strings.NewReader("wc -c; echo $1")
		w.run(t, "run", "--lang", "sh", "-", "word")
		if got, want := strings.Fields(w.out.String()), "0 word"; strings.Join(got, " ") != want {
			t.Errorf("output %q, want %q", got, want)
		}
	})
	t.Run("environment", func(t *testing.T) {
		w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
		w.env["SECRET"], w.env["TAKEN"] = "no", "yes"
		w.run(t, "run", "-e", "A=b c", "-e", "TAKEN", "-e", "ABSENT", "--", "sh", "-c", `echo "$A|$TAKEN|${ABSENT-unset}|${SECRET-unset}"`)
		if got, want := w.out.String(), "b c|yes|unset|unset\n"; got != want {
			t.Errorf("the command saw %q, want %q", got, want)
		}
	})
	t.Run("a reader that goes away ends the run", func(t *testing.T) {
		w, _, fake := newFakeRun(t, vmtest.FakeOptions{})
		w.stdout = brokenPipe{}
		if got, want := w.run(t, "run", "--", "yes"), 128+13; got != want {
			t.Errorf("exit code %d, want %d", got, want)
		}
		if w.err.String() != "" || fake.Living() != 0 {
			t.Errorf("said %q and left %d machines, want neither", w.err.String(), fake.Living())
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestRunJSON(t *testing.T) {
	skipUnlessRoot(t)
	for _, tt := range []struct {
		name  string
		args  []string
		check func(outcome) bool
	}{
		{"exit code and streams", []string{"--", "sh", "-c", "echo out; echo err >&2; exit 3"}, func(o outcome) bool {
			return o.ExitCode == 3 && o.Stdout == "out\n" && o.Stderr == "err\n" && !o.Truncated && o.Error == nil
		}},
		{"truncation", []string{"--max-output", "1K", "--", "sh", "-c", "head -c 5000 /dev/zero | tr '\\0' x"}, func(o outcome) bool {
			return o.ExitCode == 0 && o.Stdout == strings.Repeat("x", 1024) && o.Truncated
		}},
		{"not text", []string{"--", "sh", "-c", `printf 'a\377b'`}, func(o outcome) bool {
			return o.Stdout == "a\uFFFDb" && o.StdoutBase64 == "Yf9i" && o.StderrBase64 == ""
		}},
		{"timeout keeps what there was", []string{"--timeout", "300ms", "--", "sh", "-c", "echo early; sleep 100"}, func(o outcome) bool {
			return o.ExitCode == exitTimeout && o.TimedOut && o.Stdout == "early\n" && o.Error.Kind == "timed_out" && o.DurationMS >= 300
		}},
		{"signal", []string{"--", "sh", "-c", "kill -TERM $$"}, func(o outcome) bool {
			return o.ExitCode == 143 && o.Signal == "SIGTERM"
		}},
		{"not started", []string{"--", "/no/such"}, func(o outcome) bool {
			return o.ExitCode == exitNotFound && o.Error.Kind == kindNotStarted && o.Error.Remedy != ""
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
			code := w.run(t, append([]string{"run", "--json"}, tt.args...)...)
			var o outcome
			if err := json.Unmarshal([]byte(w.out.String()), &o); err != nil {
				t.Fatalf("%v in %q", err, w.out.String())
			}
			if !tt.check(o) || code != o.ExitCode || len(o.SandboxID) != 36 || o.Driver != "fake" {
				t.Errorf("exit code %d, outcome %+v", code, o)
			}
			if w.err.String() != "" {
				t.Errorf("standard error is %q, want nothing", w.err.String())
			}
		})
	}
}

// A dead sandbox is Bouvet's failure, and what came before is not lost.
func TestSandboxDies(t *testing.T) {
	skipUnlessRoot(t)
	w, _, fake := newFakeRun(t, vmtest.FakeOptions{DieAfter: 300 * time.Millisecond})
	if got := w.run(t, "run", "--json", "--", "sh", "-c", "echo early; sleep 100"); got != exitFailure {
		t.Errorf("exit code %d, want %d", got, exitFailure)
	}
	var o outcome
	if err := json.Unmarshal([]byte(w.out.String()), &o); err != nil {
		t.Fatal(err)
	}
	if o.ExitCode != exitFailure || o.Stdout != "early\n" || o.Error == nil || o.Error.Kind != kindMachineGone {
		t.Errorf("outcome %+v, want exit code %d, the early output and the kind %s", o, exitFailure, kindMachineGone)
	}
	if fake.Living() != 0 {
		t.Errorf("%d machines live on, want 0", fake.Living())
	}
}

func TestRunSignals(t *testing.T) {
	skipUnlessRoot(t)
	// Each command says "up" when it is ready for a signal.
	for _, tt := range []struct {
		name    string
		script  string
		signals []os.Signal
		want    int
	}{
		{"Ctrl-C ends the command", "echo up; exec sleep 100", []os.Signal{syscall.SIGINT}, 130},
		{"a command that handles it keeps its exit code", "trap 'exit 9' INT; echo up; while :; do sleep 0.05; done", []os.Signal{syscall.SIGINT}, 9},
		{"a second one ends it by force", "trap '' INT; echo up; while :; do sleep 0.05; done", []os.Signal{syscall.SIGINT, syscall.SIGINT}, 130},
		{"SIGTERM", "echo up; exec sleep 100", []os.Signal{syscall.SIGTERM}, 143},
		{"SIGHUP", "echo up; exec sleep 100", []os.Signal{syscall.SIGHUP}, 129},
		{"SIGUSR1 is passed on and ends nothing", "trap 'exit 5' USR1; echo up; while :; do sleep 0.05; done", []os.Signal{syscall.SIGUSR1}, 5},
		{"SIGPIPE and SIGWINCH end nothing", "echo up; sleep 0.3; exit 6", []os.Signal{syscall.SIGPIPE, syscall.SIGWINCH}, 6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, _, fake := newFakeRun(t, vmtest.FakeOptions{})
			up, ready := io.Pipe()
			w.stdout = ready
			go func() {
				_, _ = io.ReadFull(up, make([]byte, len("up\n")))
				for _, s := range tt.signals {
					w.signals <- s
				}
				_, _ = io.Copy(io.Discard, up)
			}()
			if got := w.run(t, "run", "--", "sh", "-c", tt.script); got != tt.want {
				t.Errorf("exit code %d, want %d; standard error: %s", got, tt.want, w.err.String())
			}
			if fake.Living() != 0 {
				t.Errorf("%d machines live on, want 0", fake.Living())
			}
		})
	}
}

// A signal before there is a command undoes the creation.
func TestSignalDuringCreation(t *testing.T) {
	skipUnlessRoot(t)
	up := make(chan struct{})
	w, _, fake := newFakeRun(t, vmtest.FakeOptions{Guest: func(ctx context.Context, _ net.Listener) {
		close(up)
		<-ctx.Done()
	}})
	go func() {
		<-up
		w.signals <- syscall.SIGINT
	}()
	if got := w.run(t, "run", "--", "true"); got != 130 {
		t.Errorf("exit code %d, want 130; standard error: %s", got, w.err.String())
	}
	if fake.Living() != 0 || fake.Created() != 1 {
		t.Errorf("%d of %d machines live on, want 0 of 1", fake.Living(), fake.Created())
	}
}

func TestMissingImage(t *testing.T) {
	skipUnlessRoot(t)
	newWorld := func(t *testing.T) (*testWorld, *fakeBackend) {
		w, b, _ := newFakeRun(t, vmtest.FakeOptions{})
		if err := b.store.Remove(t.Context(), image.DefaultName); err != nil {
			t.Fatal(err)
		}
		return w, b
	}
	t.Run("the default one is built", func(t *testing.T) {
		w, b := newWorld(t)
		if got := w.run(t, "run", "--", "true"); got != 0 || b.built != 1 {
			t.Errorf("exit code %d after %d builds, want 0 after 1; standard error: %s", got, b.built, w.err.String())
		}
		for _, want := range []string{"is built now", "bouvet: pretending"} {
			if !strings.Contains(w.err.String(), want) {
				t.Errorf("standard error is %q, want %q in it", w.err.String(), want)
			}
		}
	})
	t.Run("unless told not to", func(t *testing.T) {
		w, b := newWorld(t)
		if got := w.run(t, "run", "--no-build", "--", "true"); got != exitFailure || b.built != 0 {
			t.Errorf("exit code %d after %d builds, want %d after 0", got, b.built, exitFailure)
		}
		if want := "try: " + remedyBuildImages; !strings.Contains(w.err.String(), want) {
			t.Errorf("standard error is %q, want %q in it", w.err.String(), want)
		}
	})
	t.Run("a failed build says how else", func(t *testing.T) {
		w, b := newWorld(t)
		b.buildErr = errors.New("no mmdebstrap here")
		if got := w.run(t, "run", "--", "true"); got != exitFailure {
			t.Errorf("exit code %d, want %d", got, exitFailure)
		}
		if !strings.Contains(w.err.String(), "no mmdebstrap here\ntry: ") {
			t.Errorf("standard error is %q, want cause and remedy", w.err.String())
		}
	})
	t.Run("another one is not", func(t *testing.T) {
		w, b := newWorld(t)
		if got := w.run(t, "run", "--image", "alpine", "--", "true"); got != exitFailure || b.built != 0 {
			t.Errorf("exit code %d after %d builds, want %d after 0", got, b.built, exitFailure)
		}
		if !strings.Contains(w.err.String(), `"alpine"`) {
			t.Errorf("standard error is %q, want the image's name in it", w.err.String())
		}
	})
}

func TestFilesAreCopiedIn(t *testing.T) {
	skipUnlessRoot(t)
	host := t.TempDir()
	writeFile(t, host, "a", "content of a")
	if err := os.Mkdir(filepath.Join(host, "sub"), 0o750); err != nil {
		t.Fatal(err)
	}
	script := writeFile(t, filepath.Join(host, "sub"), "run", "#!/bin/sh\necho ran\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	// T51: a link is copied as a link; what it points to on the host is not read.
	if err := os.Symlink("/etc/shadow", filepath.Join(host, "link")); err != nil {
		t.Fatal(err)
	}
	odd := "odd \x1b[31m\nname: x"
	writeFile(t, host, odd, "odd")

	guest := filepath.Join(t.TempDir(), "in")
	w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
	code := w.run(t, "run", "--file", host+":"+guest, "--file", filepath.Join(host, "a")+":"+guest+"/more/", "--", guest+"/sub/run")
	if code != 0 || w.out.String() != "ran\n" {
		t.Fatalf("exit code %d, output %q; standard error: %s", code, w.out.String(), w.err.String())
	}
	for name, want := range map[string]string{"a": "content of a", "more/a": "content of a", odd: "odd"} {
		if got, err := os.ReadFile(filepath.Join(guest, name)); string(got) != want {
			t.Errorf("%q holds %q, %v, want %q", name, got, err, want)
		}
	}
	if target, err := os.Readlink(filepath.Join(guest, "link")); target != "/etc/shadow" {
		t.Errorf("link points to %q, %v, want it to be a link to /etc/shadow", target, err)
	}
	for name, want := range map[string]os.FileMode{"a": 0o600, "sub/run": 0o755, "sub": os.ModeDir | 0o750} {
		if info, err := os.Stat(filepath.Join(guest, name)); err != nil || info.Mode() != want {
			t.Errorf("%s has mode %v, %v, want %v", name, info.Mode(), err, want)
		}
	}

	t.Run("a FIFO does not block", func(t *testing.T) {
		fifo := filepath.Join(t.TempDir(), "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
		if got := w.run(t, "run", "--file", fifo+":"+guest+"/fifo", "--", "true"); got != exitFailure || !strings.Contains(w.err.String(), errNotRegular.Error()) {
			t.Errorf("exit code %d, standard error %q, want %d and %q", got, w.err.String(), exitFailure, errNotRegular)
		}
	})
}

// T51: output that cannot be written is told as that.
func TestFullOutput(t *testing.T) {
	skipUnlessRoot(t)
	w, _, _ := newFakeRun(t, vmtest.FakeOptions{})
	w.stdout = fullDisk{}
	if got := w.run(t, "run", "--", "echo", "hi"); got != exitFailure {
		t.Errorf("exit code %d, want %d", got, exitFailure)
	}
	if !strings.HasSuffix(w.err.String(), "no space left on device\ntry: an output that can be written to\n") {
		t.Errorf("standard error is %q, want cause and remedy", w.err.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

func TestParseCopies(t *testing.T) {
	dir := t.TempDir()
	colon := writeFile(t, dir, "a:b", "")
	got, err := parseCopies([]string{colon + ":/x/../y", dir + ":/into/"})
	if err != nil {
		t.Fatal(err)
	}
	want := []fileCopy{{colon, "/y"}, {dir, "/into/" + filepath.Base(dir)}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
	for _, bad := range []string{"", "x", ":/x", dir + ":relative", dir + ":", dir + ":/a\x00"} {
		if got, err := parseCopies([]string{bad}); err == nil {
			t.Errorf("parseCopies(%q) = %v, want an error", bad, got)
		}
	}
}
