package proc

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	os.Exit(testutil.LedgerMain(m, testutil.Scope{}))
}

// newManager returns a manager that is closed before the test ends.
func newManager(t testing.TB, o Options) *Manager {
	t.Helper()
	m := NewManager(o)
	t.Cleanup(m.Close)
	return m
}

func start(t testing.TB, m *Manager, s Spec) *Process {
	t.Helper()
	p, err := m.Start(s)
	if err != nil {
		t.Fatalf("cannot start %q: %v", s.Args, err)
	}
	return p
}

func sh(script string, args ...string) []string {
	return append([]string{"sh", "-c", script, "sh"}, args...)
}

// readAll reads a stream of a test's own process.
func readAll(t testing.TB, r io.Reader) string {
	t.Helper()
	if r == nil {
		return ""
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Errorf("cannot read output: %v", err)
	}
	return string(b)
}

// run starts a process and returns its output and end.
func run(t testing.TB, m *Manager, s Spec) (stdout, stderr string, status Status) {
	t.Helper()
	p := start(t, m, s)
	var reads sync.WaitGroup
	reads.Go(func() { stdout = readAll(t, p.Stdout()) })
	if !s.TTY {
		reads.Go(func() { stderr = readAll(t, p.Stderr()) })
	}
	reads.Wait()
	await(t, p)
	return stdout, stderr, p.Status()
}

// patience bounds what ought to happen at once on a busy machine.
const patience = 20 * time.Second

func await(t testing.TB, p *Process) {
	t.Helper()
	select {
	case <-p.Wait():
	case <-time.After(patience):
		t.Fatalf("process %d has not ended after %v", p.PID(), patience)
	}
}

// living returns the processes with the marker among their arguments.
func living(marker string) []int {
	entries, _ := os.ReadDir("/proc")
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if strings.Contains(string(b), marker) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// eventually waits for what no event tells.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after %v: %s", patience, what)
		}
	}
}

func TestRun(t *testing.T) {
	m := newManager(t, Options{})
	for _, c := range []struct {
		name           string
		spec           Spec
		stdout, stderr string
		want           Status
	}{
		{"true", Spec{Args: []string{"true"}}, "", "", Status{}},
		{"streams and code", Spec{Args: sh("printf out; printf err >&2; exit 5")}, "out", "err", Status{ExitCode: 5}},
		{"signal", Spec{Args: sh("kill -9 $$")}, "", "", Status{ExitCode: -1, Signal: 9}},
		{"dir and env", Spec{Args: sh("pwd; echo $A"), Dir: "/usr", Env: []string{"A=1", "A=2"}}, "/usr\n2\n", "", Status{}},
		{"stdin is empty", Spec{Args: []string{"cat"}}, "", "", Status{}},
		{"umask", Spec{Args: sh("umask")}, "0022\n", "", Status{}},
		{"own session and group", Spec{Args: sh(`set -- $(cat /proc/$$/stat); [ $5 = $$ ] && [ $6 = $$ ] && echo yes`)}, "yes\n", "", Status{}},
		{"nothing of ours is inherited", Spec{Args: []string{"ls", "/proc/self/fd"}}, "0\n1\n2\n3\n", "", Status{}},
		{"many bytes", Spec{Args: sh("head -c 300000 /dev/zero | tr '\\0' x")}, strings.Repeat("x", 300000), "", Status{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, status := run(t, m, c.spec)
			if stdout != c.stdout || stderr != c.stderr || status != c.want {
				t.Errorf("got %.200q, %.200q, %+v, want %.200q, %.200q, %+v", stdout, stderr, status, c.stdout, c.stderr, c.want)
			}
		})
	}
}

// No signal is blocked or ignored, but for the two that belong to the C library:
// its posix_spawn leaves them ignored, so that all that make starts has them so.
func TestSignalsAreDefault(t *testing.T) {
	m := newManager(t, Options{})
	stdout, stderr, status := run(t, m, Spec{Args: []string{"grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"}})
	var blocked, ignored uint64
	if _, err := fmt.Sscanf(stdout, "SigBlk: %x\nSigIgn: %x\n", &blocked, &ignored); err != nil || status != (Status{}) {
		t.Fatalf("got %q, %q, %+v: %v", stdout, stderr, status, err)
	}
	const libc = 1<<31 | 1<<32 // signals 32 and 33
	if blocked != 0 || ignored&^libc != 0 {
		t.Errorf("got %#x blocked and %#x ignored, want none", blocked, ignored)
	}
}

// 2.10: the texts hosts know.
func TestStartErrors(t *testing.T) {
	m := newManager(t, Options{})
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{}, "missing command"},
		{Spec{Args: []string{"/no"}}, "fork/exec /no: no such file or directory"},
		{Spec{Args: []string{file}}, "fork/exec " + file + ": permission denied"},
		{Spec{Args: []string{"no-such-program"}}, `exec: "no-such-program": executable file not found in $PATH`},
		{Spec{Args: []string{"true"}, Dir: "/nope"}, "chdir /nope: no such file or directory"},
		{Spec{Args: []string{"true"}, Dir: file}, "chdir " + file + ": not a directory"},
		{Spec{Args: []string{"true"}, User: "no-such-user"}, `unknown user "no-such-user"`},
		{Spec{Args: []string{"true"}, User: "0:no-such-group"}, `unknown group "no-such-group"`},
		{Spec{Args: []string{"true"}, ID: "a/b"}, "an id has 1 to 64 characters of A-Z a-z 0-9 . _ -"},
		{Spec{Args: []string{"true\x00"}}, `exec: "true\x00": executable file not found in $PATH`},
		{Spec{Args: []string{"true", "a\x00b"}}, "invalid argument"},
	} {
		p, err := m.Start(c.spec)
		if err == nil {
			t.Errorf("%+v started as %d", c.spec, p.PID())
			continue
		}
		if got := err.Error(); got != c.want && !strings.HasSuffix(got, ": "+c.want) {
			t.Errorf("%+v: got %q, want %q", c.spec, got, c.want)
		}
	}
	if got := m.List(); len(got) != 0 {
		t.Errorf("processes that did not start are listed: %+v", got)
	}
}
