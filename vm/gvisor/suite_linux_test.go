package gvisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// The contract of package vm, with the real agent on the default image.
func TestConformance(t *testing.T) { vmtest.TestDriver(t, subject(t)) }

// Machines come and go and leave nothing.
func TestSoak(t *testing.T) { vmtest.TestSoak(t, subject(t), 50) }

func subject(t *testing.T) vmtest.Subject {
	t.Helper()
	state := t.TempDir()
	machines := filepath.Join(state, "machines")
	if err := os.Mkdir(machines, 0o700); err != nil {
		t.Fatal(err)
	}
	agent := realAgent(t)
	return vmtest.Subject{
		New: func(t testing.TB) vm.Driver {
			d, err := New(Options{StateDir: state, AgentImage: agent, Exe: helperExe(t), CgroupParent: testParent})
			if err != nil {
				t.Fatal(err)
			}
			return d
		},
		Image: imagetest.Default(t),
		Kill: func(t testing.TB, m vm.Machine) {
			if err := unix.Kill(m.(*machine).sentry.PID, unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		CPUTime: cpuTime,
		Scope:   testutil.Scope{Dirs: []string{machines}, Cgroups: []string{testParent}},
	}
}

// cpuTime reads what the machine's cgroup has used.
func cpuTime(t testing.TB, m vm.Machine) time.Duration {
	t.Helper()
	d := m.(*machine).driver
	for _, dir := range d.keeper.Cgroups.Dirs(m.ID()) {
		if data, err := os.ReadFile(filepath.Join(dir, "cpuacct.usage")); err == nil { // v1, in ns
			return number(t, string(data))
		}
		data, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) { // v2, in us
			if value, ok := strings.CutPrefix(line, "usage_usec "); ok {
				return number(t, value) * time.Microsecond
			}
		}
	}
	return stubTime(t, d, m.ID())
}

func number(t testing.TB, s string) time.Duration {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n)
}

// stubTime adds up the processes of a machine, where cgroups of version 1 limit
// CPU time but do not count it. What ended processes have used is not in it.
func stubTime(t testing.TB, d *Driver, id string) time.Duration {
	t.Helper()
	const tick = time.Second / 100
	dirs := d.keeper.Cgroups.Dirs(id)
	pids, err := cgroup.PIDs(dirs[len(dirs)-1])
	if err != nil {
		t.Fatal(err)
	}
	var total time.Duration
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		total += (number(t, fields[11]) + number(t, fields[12])) * tick
	}
	return total
}

// realAgent is the image of the agent that the product carries.
func realAgent(t testing.TB) string {
	t.Helper()
	path, err := makeRealAgent()
	if err != nil {
		t.Fatalf("cannot make agent image: %v", err)
	}
	return path
}

var makeRealAgent = sync.OnceValues(func() (string, error) {
	if err := makeScratch(); err != nil {
		return "", err
	}
	if _, ok := guest.Binary(); ok {
		return guest.Image(scratch)
	}
	path := filepath.Join(scratch, "bouvet-agent")
	cmd := exec.Command("go", "build", "-trimpath", "-o", path, "../../cmd/bouvet-agent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	binary, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return guest.Agent{Binary: binary, Digest: "sha256:real"}.Image(scratch)
})
