package proc

import (
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseOOMKill(t *testing.T) {
	const before = "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=python3,pid=78,uid=0"
	for _, tt := range []struct {
		name, record string
		pid          int
		at           time.Duration
	}{
		{"before the kill", "6,339,5140900,-;" + before + "\n", 78, 5140900 * time.Microsecond},
		{"after it", "3,340,5140990,-;Out of memory: Killed process 78 (python3) total-vm:190000kB, anon-rss:90000kB\n SUBSYSTEM=x\n", 78, 5140990 * time.Microsecond},
		{"of a cgroup", "3,340,7,-;Memory cgroup out of memory: Killed process 4194303 (a) total-vm:1kB", 4194303, 7 * time.Microsecond},
		{"whoever asked", "3,340,7,-;Out of memory (oom_kill_allocating_task): Killed process 9 (a)", 9, 7 * time.Microsecond},
		{"T23 a name that looks like it", "6,1,1,-;oom-kill:constraint=X,task=,pid=1,uid=0,pid=78,uid=0", 78, time.Microsecond},
		{"written by a program", "11,340,7,-;Out of memory: Killed process 78 (python3)", 0, 0},
		{"another message", "6,1,1,-;python3[78]: segfault at 0: Killed process 78", 0, 0},
		{"no number", "6,1,1,-;oom-kill:constraint=X", 0, 0},
		{"no number after it", "3,1,1,-;Out of memory: Killed process (python3)", 0, 0},
		{"huge number", "3,1,1,-;Out of memory: Killed process 99999999999999999999 (python3)", 0, 0},
		{"no text", "6,1,1,-", 0, 0},
		{"no head", ";" + before, 0, 0},
		{"bad level", "x,1,1,-;" + before, 0, 0},
		{"bad time", "6,1,-1,-;" + before, 0, 0},
		{"nothing", "", 0, 0},
	} {
		k, ok := parseOOMKill(tt.record)
		if ok != (tt.pid > 0) || ok && (k.pid != tt.pid || k.at != tt.at) {
			t.Errorf("%s: got %+v, %v, want %d at %v", tt.name, k, ok, tt.pid, tt.at)
		}
	}
}

// T02: a process counts as killed for memory if the kernel says so of it, or of
// something that ran for a shell that was told of a kill, and not because of what was
// before its start.
func TestOOMLog(t *testing.T) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	o := &oomLog{fd: fds[0]}
	t.Cleanup(func() { o.close(); _ = unix.Close(fds[1]) })
	for _, record := range []string{"6,1,1000000,-;hello", "3,2,2000000,-;Out of memory: Killed process 78 (python3)"} {
		if _, err := unix.Write(fds[1], []byte(record)); err != nil {
			t.Fatal(err)
		}
	}
	killed, shell := Status{ExitCode: -1, Signal: int(unix.SIGKILL)}, Status{ExitCode: shellKilled}
	for _, tt := range []struct {
		name  string
		pid   int
		since time.Duration
		end   Status
		want  bool
	}{
		{"that process", 78, time.Second, killed, true},
		{"asked again", 78, time.Second, killed, true},
		{"another process", 79, time.Second, killed, false},
		{"one that had its number later", 78, 3 * time.Second, killed, false},
		{"another end", 78, time.Second, Status{ExitCode: -1, Signal: int(unix.SIGTERM)}, false},
		{"an exit", 78, time.Second, Status{ExitCode: 1}, false},
		{"a shell with such a child", 70, time.Second, shell, true},
		{"a shell that began later", 70, 3 * time.Second, shell, false},
	} {
		if got := o.killed(tt.pid, tt.since, &tt.end); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
	for range 3 * maxKills {
		if _, err := unix.Write(fds[1], []byte("3,2,2000000,-;Out of memory: Killed process 5 (x)")); err != nil {
			t.Fatal(err)
		}
		o.read()
	}
	if len(o.kills) != maxKills {
		t.Errorf("%d kills are remembered, want %d", len(o.kills), maxKills)
	}
	if (*oomLog)(nil).killed(78, 0, &killed) {
		t.Error("no log knows of a kill")
	}
}

// Where the kernel ended nobody, SIGKILL is no want of memory.
func TestKilledIsNotOOM(t *testing.T) {
	m := NewManager(Options{Guest: true})
	defer m.Close()
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, script := range []string{"kill -KILL $$", "exit 137"} {
		p, err := m.Start(Spec{Args: []string{path, "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		_ = p.Stdout().Close()
		_ = p.Stderr().Close()
		<-p.Wait()
		if s := p.Status(); s.OOMKilled || s.Signal != int(unix.SIGKILL) && s.ExitCode != shellKilled {
			t.Errorf("%s: got %+v", script, s)
		}
	}
}
