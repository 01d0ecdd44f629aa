package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// T02: when the guest's memory runs out its kernel spares the agent, and no child of
// it: the workload ends by a signal, which is told, and the agent goes on. Here the
// agent has the right to ask for that, which it often lacks in a container.
func TestGuestOutOfMemory(t *testing.T) {
	o := testOptions(t, t.TempDir())
	machines := filepath.Join(o.StateDir, "machines")
	if err := os.Mkdir(machines, 0o700); err != nil {
		t.Fatal(err)
	}
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}, Dirs: []string{machines}})
	_, client := create(t, testDriver(t, o), testConfig(t))
	if got := sh(t, client, "cat /proc/1/oom_score_adj; cat /proc/self/oom_score_adj"); got != "-1000\n0" {
		t.Errorf("got scores %q, want -1000 of the agent and 0 of its child", got)
	}
	bomb := client.Command(testContext(t), "python3", "-c", "b = []\nwhile True: b.append(b'x' * (1 << 20) + bytes([len(b) % 256]))")
	err := bomb.Run()
	var exit *bouvet.ExitError
	if !errors.As(err, &exit) || exit.Signal != syscall.SIGKILL || exit.TimedOut || !exit.OOMKilled {
		t.Errorf("got %#v, want its end by SIGKILL for want of memory", err)
	}
	if err := client.Ping(testContext(t)); err != nil {
		t.Fatalf("the agent is gone: %v", err)
	}
	if got := sh(t, client, "grep ^oom_kill /proc/vmstat | cut -d' ' -f2"); got != "1" {
		t.Errorf("the kernel has killed %q for memory, want 1", got)
	}
	for script, want := range map[string]bool{
		"python3 -c 'b = []\nwhile True: b.append(b\"x\" * (1 << 20) + bytes([len(b) % 256]))'; exit $?": true,
		"kill -KILL $$":                  false,
		"sh -c 'kill -KILL $$'; exit $?": false,
	} {
		err := client.Command(testContext(t), "sh", "-c", script).Run()
		if !errors.As(err, &exit) || exit.OOMKilled != want {
			t.Errorf("%s: got %#v, want OOMKilled %v", script, err, want)
		}
	}
	if got := sh(t, client, "cat /proc/1/oom_score_adj"); got != "-1000" {
		t.Errorf("got score %q of the agent, want -1000", got)
	}
}
