package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/local"
)

// own is the life of a process that holds sandboxes and works with them until it
// is killed. Its arguments: the state directory, the root file system, the helper.
func own() int {
	ctx := context.Background()
	m, err := local.Open(ctx, local.Options{StateDir: os.Args[1], Exe: os.Args[3], Defaults: bouvet.Config{RootfsPath: os.Args[2]}})
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	var ids []string
	for range 2 {
		s, err := m.CreateSandbox(ctx, bouvet.Config{})
		if err != nil {
			fmt.Println("error:", err)
			return 1
		}
		ids = append(ids, s.ID().String())
		for _, script := range []string{"trap '' TERM HUP INT; while :; do sleep 1; done", "yes", "cat"} {
			c := s.Command(ctx, "sh", "-c", script)
			c.Stdin, c.Stdout = &endless{}, io.Discard
			if err := c.Start(); err != nil {
				fmt.Println("error:", err)
				return 1
			}
		}
	}
	fmt.Println("ready", strings.Join(ids, " "))
	go func() { // for ever, so that the kill meets creations too
		for {
			if id, err := m.Create(ctx, bouvet.Config{}); err == nil {
				_ = m.Destroy(ctx, id)
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// T32: a process that is killed while its sandboxes work leaves nothing that runs,
// and the next one clears up after it.
func TestOwnerKilled(t *testing.T) {
	ledger(t)
	o := options(t)
	cmd := testutil.Reexec(t, "owner", stateDir, o.Defaults.RootfsPath, o.Exe)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stdin.Close() }()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	ids, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ready {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		t.Fatalf("owner: %q, %v", line, err)
	}
	for id := range strings.FieldsSeq(ids) {
		made[id] = true
		if len(sentries(t, id)) == 0 {
			t.Errorf("%s has no sentry", id)
		}
	}
	// While it lives, nobody takes anything from it.
	d, err := local.Driver(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := d.Sweep(timed(t), true); err != nil || len(found) > 0 {
		t.Errorf("sweep beside a living owner: got %+v, %v", found, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the owner was not killed")
	}
	eventually(t, "all sentries are gone", func() bool { return len(sentries(t, "")) == 0 })
	openWith(t, o)
	entries, err := os.ReadDir(machines())
	if err != nil || len(entries) > 0 {
		t.Errorf("after the next start: %v, %v", entries, err)
	}
}

// sentries are the processes of a sandbox, or of all in this run's state.
func sentries(t testing.TB, id string) []int {
	t.Helper()
	mark := "--root=" + filepath.Join(machines(), id)
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range paths {
		if cmdline, err := os.ReadFile(path); err == nil && strings.Contains(string(cmdline), mark) {
			pids = append(pids, int(atoi(t, filepath.Base(filepath.Dir(path)))))
		}
	}
	return pids
}

// killSentry ends a sandbox's processes as kill -9 does.
func killSentry(t testing.TB, id string) {
	t.Helper()
	pids := sentries(t, id)
	if len(pids) == 0 {
		t.Fatalf("%s has no process", id)
	}
	for _, pid := range pids {
		kill9(pid)
	}
}

// kill9 kills a process of ours that may have ended.
func kill9(pid int) { _ = unix.Kill(pid, unix.SIGKILL) }

// T15: what a killed client was running ends with it; nobody else's does.
func TestClientKilled(t *testing.T) {
	if _, err := exec.LookPath("sleep"); err != nil {
		t.Fatal(err)
	}
	s := box(t, bouvet.Config{})
	// Both ends of the client's stream are ours: its kernel closes it, no more.
	conn := dial(t, s, 10700)
	if _, err := io.WriteString(conn, `{"command":["sleep","4711"],"started":true}`+"\n"); err != nil {
		t.Fatal(err)
	}
	f := readFrame(t, bufio.NewReader(conn))
	if f.Type != "started" || f.PID == 0 {
		t.Fatalf("got %+v, want started", f)
	}
	other := s.Command(timed(t), "sleep", "4712")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	alive := "kill -0 " + itoa(f.PID) + " 2>/dev/null && echo alive || echo gone"
	if got := sh(t, s, alive); got != "alive" {
		t.Fatalf("the command is %s", got)
	}
	begin := time.Now()
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command is gone", func() bool { return sh(t, s, alive) == "gone" })
	t.Logf("gone after %v", time.Since(begin))
	if got := sh(t, s, "kill -0 "+itoa(other.PID())+" && echo alive"); got != "alive" {
		t.Error("another client's command is gone as well")
	}
}
