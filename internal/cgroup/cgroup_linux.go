package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
)

// cpuPeriod is the period of the CPU quota in microseconds.
const cpuPeriod = 100_000

func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Limits is what is enforced on a machine.
type Limits struct {
	MemoryBytes int64
	CPUs        int
	PIDs        int
}

// A Tree is the place where machines' cgroups are made: one directory per v1
// hierarchy, or a single one in the v2 hierarchy. None means that this host lets us
// set no limits.
type Tree struct {
	v2 bool
	// bases are the hierarchies' directories under which parent is made, by
	// controller for v1, "" for v2.
	bases  map[string]string
	parent string
	// keepParent says that parent is somebody else's, not to be removed by us.
	keepParent bool
	// Write writes a control file; a test may put another one here.
	Write func(path, value string) error
}

// Limits reports whether a controller ("memory", "cpu", "pids") is enforced here.
func (t *Tree) Limits(controller string) bool {
	if t.v2 {
		return len(t.bases) > 0
	}
	return t.bases[controller] != ""
}

// Dirs are the cgroup directories of machine id, memory first.
func (t *Tree) Dirs(id string) []string {
	var dirs []string
	for _, controller := range []string{"", "memory", "cpu", "pids"} {
		if base := t.bases[controller]; base != "" {
			dir := filepath.Join(base, t.parent, id)
			if len(dirs) == 0 || dirs[len(dirs)-1] != dir { // cpu and pids may share a mount
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// Create makes the cgroups of machine id and sets the limits.
func (t *Tree) Create(id string, l Limits) error {
	for _, dir := range t.Dirs(id) {
		if err := t.mkdir(dir); err != nil {
			return fmt.Errorf("cannot make cgroup: %w", err)
		}
	}
	for _, s := range t.Settings(id, l) {
		err := t.Write(s.Path, s.Value)
		if s.Optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
			continue // no swap accounting in this kernel
		}
		if err != nil {
			return fmt.Errorf("cannot limit machine: %w", err)
		}
	}
	return nil
}

// mkdir makes a machine's cgroup, and the parent, which another process may be
// removing at this moment because it was empty.
func (t *Tree) mkdir(dir string) error {
	var err error
	for range 16 {
		if err = os.MkdirAll(filepath.Dir(dir), 0o750); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if t.v2 {
			if err = t.delegate(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err = os.Mkdir(dir, 0o750); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return err
}

// delegate enables the controllers for the children of every cgroup from the base
// down to parent (v2 only).
func (t *Tree) delegate(parent string) error {
	const want = "+memory +cpu +pids"
	base := t.bases[""]
	rel, err := filepath.Rel(base, parent)
	if err != nil {
		return err
	}
	dir := base
	for _, elem := range append([]string{"."}, strings.Split(rel, "/")...) {
		dir = filepath.Join(dir, elem)
		control := filepath.Join(dir, "cgroup.subtree_control")
		if have, err := os.ReadFile(control); err == nil && hasControllers(string(have)) {
			continue
		}
		if err := t.Write(control, want); err != nil {
			return fmt.Errorf("cannot delegate controllers: %w", err)
		}
	}
	return nil
}

func hasControllers(list string) bool {
	fields := " " + strings.Join(strings.Fields(list), " ") + " "
	for _, c := range []string{"memory", "cpu", "pids"} {
		if !strings.Contains(fields, " "+c+" ") {
			return false
		}
	}
	return true
}

// A Setting is a control file and what is written to it. An optional one may be missing.
type Setting struct {
	Path, Value string
	Optional    bool
}

// Settings are what Create writes.
func (t *Tree) Settings(id string, l Limits) []Setting {
	mem, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.Itoa(l.CPUs*cpuPeriod)
	if t.v2 {
		dir := filepath.Join(t.bases[""], t.parent, id)
		return []Setting{
			{Path: filepath.Join(dir, "memory.max"), Value: mem},
			{Path: filepath.Join(dir, "memory.swap.max"), Value: "0", Optional: true},
			{Path: filepath.Join(dir, "memory.oom.group"), Value: "1", Optional: true},
			{Path: filepath.Join(dir, "cpu.max"), Value: quota + " " + strconv.Itoa(cpuPeriod)},
			{Path: filepath.Join(dir, "pids.max"), Value: strconv.Itoa(l.PIDs)},
		}
	}
	var s []Setting
	if base := t.bases["memory"]; base != "" {
		dir := filepath.Join(base, t.parent, id)
		s = append(s,
			Setting{Path: filepath.Join(dir, "memory.limit_in_bytes"), Value: mem},
			// Memory and swap together: no swap beyond the memory.
			Setting{Path: filepath.Join(dir, "memory.memsw.limit_in_bytes"), Value: mem, Optional: true})
	}
	if base := t.bases["cpu"]; base != "" {
		dir := filepath.Join(base, t.parent, id)
		s = append(s,
			Setting{Path: filepath.Join(dir, "cpu.cfs_period_us"), Value: strconv.Itoa(cpuPeriod)},
			Setting{Path: filepath.Join(dir, "cpu.cfs_quota_us"), Value: quota})
	}
	if base := t.bases["pids"]; base != "" {
		s = append(s, Setting{Path: filepath.Join(base, t.parent, id, "pids.max"), Value: strconv.Itoa(l.PIDs)})
	}
	return s
}

// Enter moves process pid into the cgroups of machine id.
func (t *Tree) Enter(id string, pid int) error {
	for _, dir := range t.Dirs(id) {
		if err := t.Write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("cannot enter cgroup: %w", err)
		}
	}
	return nil
}

// OOMKilled reports whether the kernel killed something of machine id for memory.
func (t *Tree) OOMKilled(id string) bool { return t.OOMKills(id) > 0 }

// OOMKills is how many processes of machine id the kernel killed for memory, 0 where it
// is not limited.
func (t *Tree) OOMKills(id string) int {
	dirs := t.Dirs(id)
	if len(dirs) == 0 || !t.Limits("memory") {
		return 0
	}
	name := "memory.oom_control"
	if t.v2 {
		name = "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(dirs[0], name))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.Atoi(value); key == "oom_kill" && err == nil {
			return n
		}
	}
	return 0
}

// PIDs are the processes in a cgroup; none if it does not exist.
func PIDs(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("cannot parse %s: %w", dir, err)
		}
		if pid > 0 { // 0 is a process of another PID namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Kill kills everything in a cgroup until nothing is left, and returns what
// it found.
func Kill(ctx context.Context, dir string) (killed []int, err error) {
	_ = writeControl(filepath.Join(dir, "cgroup.kill"), "1") // v2, Linux 5.14
	seen := map[int]bool{}
	err = wait.Until(ctx, func() (bool, error) {
		pids, err := PIDs(dir)
		if err != nil {
			return false, err
		}
		for _, pid := range pids {
			if !seen[pid] {
				seen[pid] = true
				killed = append(killed, pid)
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("cannot kill process %d: %w", pid, err)
			}
		}
		return len(pids) == 0, nil
	})
	if err != nil {
		return killed, fmt.Errorf("cannot empty cgroup %s: %w", dir, err)
	}
	return killed, nil
}

// Remove removes an empty cgroup, waiting while the kernel still counts
// processes that are on their way out, and its parent if that is ours and empty.
func (t *Tree) Remove(ctx context.Context, dir string) error {
	err := wait.Until(ctx, func() (bool, error) {
		err := unix.Rmdir(dir)
		if errors.Is(err, unix.EBUSY) {
			return false, nil
		}
		return true, err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove cgroup %s: %w", dir, err)
	}
	if !t.keepParent {
		_ = unix.Rmdir(filepath.Dir(dir)) // another machine's is in it, perhaps
	}
	return nil
}
