package gvisor

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/vm"
)

// T53: what a sentry may do on the host: nothing, and after its state was loaded too.
func TestPosture(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := savable(t)
	m := create(t, d, c)
	t.Run("created", func(t *testing.T) { wantPosture(t, d, m, c) })
	dir := save(t, m)
	t.Run("saved", func(t *testing.T) { wantPosture(t, d, m, c) })
	c = savable(t)
	m = restore(t, d, c, dir)
	t.Run("restored", func(t *testing.T) { wantPosture(t, d, m, c) })
}

func wantPosture(t *testing.T, d *Driver, m vm.Machine, c vm.Config) {
	t.Helper()
	says(t, m, "ping", "pong")
	pid := m.(*machine).sentry.PID
	proc := filepath.Join("/proc", strconv.Itoa(pid))

	tasks, err := os.ReadDir(filepath.Join(proc, "task"))
	if err != nil {
		t.Fatal(err)
	}
	uid := "65534"
	if os.Geteuid() != 0 {
		uid = strconv.Itoa(os.Geteuid())
	}
	for _, task := range tasks {
		status := readStatus(t, filepath.Join(proc, "task", task.Name(), "status"))
		for key, want := range map[string]string{
			"Uid":    strings.TrimSpace(strings.Repeat(uid+" ", 4)),
			"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000",
			"CapBnd": "0000000000000000", "CapAmb": "0000000000000000",
			"NoNewPrivs": "1", "Seccomp": "2",
		} {
			if got := strings.Join(strings.Fields(status[key]), " "); got != want {
				t.Errorf("thread %s: %s: got %s, want %s", task.Name(), key, got, want)
			}
		}
	}
	for _, ns := range []string{"user", "mnt", "net", "pid", "uts", "ipc"} {
		own, _ := os.Readlink("/proc/self/ns/" + ns)
		if got, err := os.Readlink(filepath.Join(proc, "ns", ns)); err != nil || got == own {
			t.Errorf("%s namespace: got %s, %v, want another than ours", ns, got, err)
		}
	}
	if root, err := os.ReadDir(filepath.Join(proc, "root")); err != nil || len(root) > 3 {
		t.Errorf("root directory: got %v, %v", root, err)
	}
	if d.Features().MemoryLimit {
		for _, dir := range d.keeper.Cgroups.Dirs(c.ID) {
			if pids, err := cgroup.PIDs(dir); err != nil || !slices.Contains(pids, pid) {
				t.Errorf("cgroup %s: got %v, %v, want %d in it", dir, pids, err, pid)
			}
		}
	}

	limits := cgroup.Limits{MemoryBytes: int64(c.MemoryMiB+overheadMiB) << 20, CPUs: c.VCPUs, PIDs: pidsMax}
	for _, s := range d.keeper.Cgroups.Settings(c.ID, limits) {
		got, err := os.ReadFile(s.Path)
		if s.Optional && os.IsNotExist(err) {
			continue
		}
		if strings.TrimSpace(string(got)) != s.Value {
			t.Errorf("%s: got %q, %v, want %s", s.Path, got, err, s.Value)
		}
	}

	// Descriptors: those of the sentry's own making, the images read-only, and ours.
	count := map[string]int{}
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		link, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if err != nil {
			continue
		}
		kind, _, _ := strings.Cut(link, ":")
		if strings.HasPrefix(link, "/") {
			kind = strings.TrimSuffix(link, " (deleted)")
		}
		if link == c.Image || link == d.agent {
			if info := readStatus(t, filepath.Join(proc, "fdinfo", fd.Name())); !strings.HasSuffix(strings.TrimSpace(info["flags"]), "0") {
				t.Errorf("%s: flags %s, want read-only", link, info["flags"])
			}
		}
		count[kind]++
	}
	t.Log(count)
	allowed := []string{
		c.Image, d.agent, "/dev/null", "pipe", "socket", "anon_inode",
		"/memfd:console-" + c.ID, "/memfd:runsc-memory", "/memfd:systrap-memory", "/memfd:memory-usage",
	}
	for kind := range count {
		if !slices.Contains(allowed, kind) {
			t.Errorf("unexpected descriptor of %s", kind)
		}
	}
}

func readStatus(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	m := map[string]string{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		key, value, _ := strings.Cut(s.Text(), ":")
		m[key] = strings.TrimSpace(value)
	}
	if len(m) == 0 {
		t.Fatal(fmt.Errorf("%s is empty", path))
	}
	return m
}
