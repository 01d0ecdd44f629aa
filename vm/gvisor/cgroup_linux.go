package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cpuPeriod is the period of the CPU quota in microseconds.
	cpuPeriod = 100_000
	// pidsMax bounds a sandbox's threads and stub processes on the host: about 20,
	// plus two for every process of the guest. The sentry dies when it hits the
	// limit, so it only protects the host from the worst.
	pidsMax = 16384
)

func writeControl(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// cgroupLimits is what is enforced on a machine.
type cgroupLimits struct {
	MemoryBytes int64
	CPUs        int
	PIDs        int
}

// A cgroupTree is the place where machines' cgroups are made: one directory per v1
// hierarchy, or a single one in the v2 hierarchy. None means that this host lets us
// set no limits.
type cgroupTree struct {
	v2 bool
	// bases are the hierarchies' directories under which parent is made, by
	// controller for v1, "" for v2.
	bases  map[string]string
	parent string
	// keepParent says that parent is somebody else's, not to be removed by us.
	keepParent bool
	write      func(path, value string) error
}

func (t *cgroupTree) limits(controller string) bool {
	if t.v2 {
		return len(t.bases) > 0
	}
	return t.bases[controller] != ""
}

// dirs are the cgroup directories of machine id, memory first.
func (t *cgroupTree) dirs(id string) []string {
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

// create makes the cgroups of machine id and sets the limits.
func (t *cgroupTree) create(id string, l cgroupLimits) error {
	for _, dir := range t.dirs(id) {
		if err := t.mkdir(dir); err != nil {
			return fmt.Errorf("cannot make cgroup: %w", err)
		}
	}
	for _, s := range t.settings(id, l) {
		err := t.write(s.path, s.value)
		if s.optional && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
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
func (t *cgroupTree) mkdir(dir string) error {
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
func (t *cgroupTree) delegate(parent string) error {
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
		if err := t.write(control, want); err != nil {
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

type cgroupSetting struct {
	path, value string
	optional    bool
}

func (t *cgroupTree) settings(id string, l cgroupLimits) []cgroupSetting {
	mem, quota := strconv.FormatInt(l.MemoryBytes, 10), strconv.Itoa(l.CPUs*cpuPeriod)
	if t.v2 {
		dir := filepath.Join(t.bases[""], t.parent, id)
		return []cgroupSetting{
			{path: filepath.Join(dir, "memory.max"), value: mem},
			{path: filepath.Join(dir, "memory.swap.max"), value: "0", optional: true},
			{path: filepath.Join(dir, "memory.oom.group"), value: "1", optional: true},
			{path: filepath.Join(dir, "cpu.max"), value: quota + " " + strconv.Itoa(cpuPeriod)},
			{path: filepath.Join(dir, "pids.max"), value: strconv.Itoa(l.PIDs)},
		}
	}
	var s []cgroupSetting
	if base := t.bases["memory"]; base != "" {
		dir := filepath.Join(base, t.parent, id)
		s = append(s,
			cgroupSetting{path: filepath.Join(dir, "memory.limit_in_bytes"), value: mem},
			// Memory and swap together: no swap beyond the memory.
			cgroupSetting{path: filepath.Join(dir, "memory.memsw.limit_in_bytes"), value: mem, optional: true})
	}
	if base := t.bases["cpu"]; base != "" {
		dir := filepath.Join(base, t.parent, id)
		s = append(s,
			cgroupSetting{path: filepath.Join(dir, "cpu.cfs_period_us"), value: strconv.Itoa(cpuPeriod)},
			cgroupSetting{path: filepath.Join(dir, "cpu.cfs_quota_us"), value: quota})
	}
	if base := t.bases["pids"]; base != "" {
		s = append(s, cgroupSetting{path: filepath.Join(base, t.parent, id, "pids.max"), value: strconv.Itoa(l.PIDs)})
	}
	return s
}

// enter moves process pid into the cgroups of machine id.
func (t *cgroupTree) enter(id string, pid int) error {
	for _, dir := range t.dirs(id) {
		if err := t.write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("cannot enter cgroup: %w", err)
		}
	}
	return nil
}

// oomKilled reports whether the kernel killed something of machine id for memory.
func (t *cgroupTree) oomKilled(id string) bool {
	dirs := t.dirs(id)
	if len(dirs) == 0 || !t.limits("memory") {
		return false
	}
	name := "memory.oom_control"
	if t.v2 {
		name = "memory.events"
	}
	data, err := os.ReadFile(filepath.Join(dirs[0], name))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if key == "oom_kill" {
			return value != "0"
		}
	}
	return false
}

// cgroupPIDs are the processes in a cgroup; none if it does not exist.
func cgroupPIDs(dir string) ([]int, error) {
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

// killCgroup kills everything in a cgroup until nothing is left, and returns what
// it found.
func killCgroup(ctx context.Context, dir string) (killed []int, err error) {
	_ = writeControl(filepath.Join(dir, "cgroup.kill"), "1") // v2, Linux 5.14
	seen := map[int]bool{}
	err = poll(ctx, func() (bool, error) {
		pids, err := cgroupPIDs(dir)
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

// removeCgroup removes an empty cgroup, waiting while the kernel still counts
// processes that are on their way out, and its parent if that is ours and empty.
func (t *cgroupTree) removeCgroup(ctx context.Context, dir string) error {
	err := poll(ctx, func() (bool, error) {
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

// poll calls f until it says true or fails, at growing intervals from 0.5 to 50 ms.
func poll(ctx context.Context, f func() (bool, error)) error {
	wait := 500 * time.Microsecond
	for {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}
