package testutil_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{"orphan maker": makeOrphan, "echo": echo})
	os.Exit(testutil.LedgerMain(m, testutil.Scope{}))
}

// recorder is a test whose failure and whose end the real test decides over.
type recorder struct {
	testing.TB

	cleanups []func()
	failures []string
}

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Errorf(format string, a ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, a...))
}

func (r *recorder) end() string {
	for len(r.cleanups) > 0 {
		last := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		last()
	}
	return strings.Join(r.failures, "\n")
}

// ledgerOn opens a ledger whose verdict end returns. A leak costs its grace.
func ledgerOn(t *testing.T, s testutil.Scope) (end func() string) {
	t.Helper()
	if s.Grace == 0 {
		s.Grace = 50 * time.Millisecond
	}
	r := &recorder{TB: t}
	testutil.Ledger(r, s)
	return r.end
}

func wantLeak(t *testing.T, got, want string) {
	t.Helper()
	if !strings.Contains(got, want) {
		t.Errorf("ledger says %q, want it to contain %q", got, want)
	}
	if n := strings.Count(got, "\n\t"); n != 1 {
		t.Errorf("ledger lists %d leaks, want exactly one: %q", n, got)
	}
}

func TestLedgerFindsNothing(t *testing.T) {
	dir, scratch := t.TempDir(), t.TempDir()
	end := ledgerOn(t, testutil.Scope{Dirs: []string{dir}, Cgroups: []string{"bouvet*"}, Grace: 5 * time.Second})
	done := make(chan struct{})
	go func() { defer close(done) }()
	<-done
	ln, err := net.Listen("unix", filepath.Join(scratch, "s"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if err := exec.CommandContext(t.Context(), "true").Run(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "file")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if got := end(); got != "" {
		t.Errorf("ledger says %q of a test that cleaned up, want nothing", got)
	}
}

func TestLedgerFindsChild(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{})
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	got := end()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !strings.Contains(got, fmt.Sprintf("process %d, parent %d: sleep 1000", cmd.Process.Pid, os.Getpid())) {
		t.Errorf("ledger says %q, want it to name the sleeping child", got)
	}
}

func TestLedgerFindsZombie(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{})
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	// Reports the exit without reaping: the zombie stays.
	waitExited(t, pid)
	got := end()
	if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, got, fmt.Sprintf("process %d, parent %d: (zombie, nobody waited for it)", pid, os.Getpid()))
}

// makeOrphan starts a process that outlives it, in a session of its own, says
// which, and ends.
func makeOrphan() int {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if len(os.Args) > 1 { // no token: only its command line tells whose it is
		cmd = exec.Command("tail", "-f", os.Args[1])
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Env = []string{}
	}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(cmd.Process.Pid)
	return 0
}

func TestLedgerFindsOrphan(t *testing.T) {
	tests := []struct {
		name string
		args func(r *recorder) []string
		want string
	}{
		{"by its environment", func(*recorder) []string { return nil }, "sleep 1000"},
		{"by its command line", func(r *recorder) []string {
			file := filepath.Join(r.TempDir(), "of the test")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				r.Fatal(err)
			}
			return []string{file}
		}, "tail -f /"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &recorder{TB: t}
			testutil.Ledger(r, testutil.Scope{Grace: 50 * time.Millisecond})
			out, err := testutil.Reexec(t, "orphan maker", tt.args(r)...).Output()
			if err != nil {
				t.Fatal(err)
			}
			var pid int
			if _, err := fmt.Sscan(string(out), &pid); err != nil {
				t.Fatal(err)
			}
			got := r.end()
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			wantLeak(t, got, fmt.Sprintf("process %d", pid))
			wantLeak(t, got, tt.want)
		})
	}
}

func TestLedgerFindsDescriptor(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{})
	f, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	got := end()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, got, ": /dev/zero")
}

func TestLedgerFindsSocket(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := end()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, got, ": socket:[")
}

func TestLedgerFindsGoroutine(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{})
	release := make(chan struct{})
	started := make(chan struct{})
	go func() { close(started); <-release }()
	<-started
	got := end()
	close(release)
	wantLeak(t, got, "[chan receive] in github.com/bouvet-run/bouvet/internal/testutil_test.TestLedgerFindsGoroutine.func1, created by ")
}

func TestLedgerFindsFileAndDirectory(t *testing.T) {
	dir := t.TempDir()
	end := ledgerOn(t, testutil.Scope{Dirs: []string{dir}})
	if err := os.Mkdir(filepath.Join(dir, "machine"), 0o700); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, end(), "directory "+filepath.Join(dir, "machine"))
	end = ledgerOn(t, testutil.Scope{Dirs: []string{dir}})
	if err := os.WriteFile(filepath.Join(dir, "machine", "lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, end(), "file "+filepath.Join(dir, "machine", "lock"))
}

func TestLedgerFindsMount(t *testing.T) {
	needRoot(t)
	r := &recorder{TB: t}
	testutil.Ledger(r, testutil.Scope{Grace: 50 * time.Millisecond})
	dir := r.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("cannot mount a tmpfs: %v; run the tests in a container with `--cap-add SYS_ADMIN`", err)
	}
	got := r.end()
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, got, "mount "+dir+" (tmpfs ")
}

func TestLedgerFindsCgroup(t *testing.T) {
	needRoot(t)
	parent := fmt.Sprintf("bouvet-ledger-test-%d", os.Getpid())
	root := "/sys/fs/cgroup/memory"
	if _, err := os.Stat(root); err != nil {
		root = "/sys/fs/cgroup"
	}
	cgroup := filepath.Join(root, parent, "machine")
	if err := os.Mkdir(filepath.Dir(cgroup), 0o755); err != nil {
		t.Skipf("cannot make a cgroup: %v; run the tests where /sys/fs/cgroup is writable, with `mount -o remount,rw /sys/fs/cgroup`", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(filepath.Dir(cgroup)); err != nil {
			t.Error(err)
		}
	})
	end := ledgerOn(t, testutil.Scope{Cgroups: []string{"bouvet-ledger-test-*"}})
	if err := os.Mkdir(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	got := end()
	if err := os.Remove(cgroup); err != nil {
		t.Fatal(err)
	}
	wantLeak(t, got, "cgroup "+cgroup)
}

// What is still on its way out when the test ends is not a leak.
func TestLedgerWaits(t *testing.T) {
	end := ledgerOn(t, testutil.Scope{Grace: 10 * time.Second})
	leaving := make(chan struct{})
	go func() {
		defer close(leaving)
		timer := time.NewTimer(100 * time.Millisecond)
		<-timer.C
	}()
	if got := end(); got != "" {
		t.Errorf("ledger says %q, want it to have waited", got)
	}
	<-leaving
}

func echo() int {
	if _, found := os.LookupEnv("BOUVET_TEST_PERSONA"); found {
		return 3
	}
	if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
		return 1
	}
	return len(os.Args) - 1
}

func TestReexec(t *testing.T) {
	cmd := testutil.Reexec(t, "echo", "a", "b")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(stdin, "alive\n"); err != nil {
		t.Fatal(err)
	}
	got, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || got != "alive\n" {
		t.Errorf("the persona answered %q, %v, want what it was sent", got, err)
	}
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if got, want := cmd.ProcessState.ExitCode(), 2; got != want {
		t.Errorf("the persona exited with %d, want %d, the number of its arguments", got, want)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: run `sudo -E go test ./internal/testutil`")
	}
}
