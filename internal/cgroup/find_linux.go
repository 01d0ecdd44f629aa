package cgroup

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/mountinfo"
)

// Find looks for the place where this process may make cgroups that limit memory,
// CPU and processes. parent is the cgroup that holds those of the machines: relative
// to the root of the hierarchy, or for an unprivileged user on cgroup v2 to the
// topmost cgroup delegated to it; empty means DefaultParent.
func Find(parent string) *Tree { return find("", parent) }

// find is Find. root is prepended to /proc and to the mount points
// found there; it is empty but in tests.
func find(root, parent string) *Tree {
	t := &Tree{parent: parent, bases: map[string]string{}, Write: writeControl}
	if parent == "" {
		t.parent = DefaultParent
	} else {
		t.keepParent = true
	}
	mounts, err := os.ReadFile(filepath.Join(root, "/proc/self/mountinfo"))
	if err != nil {
		return t
	}
	own, _ := os.ReadFile(filepath.Join(root, "/proc/self/cgroup"))
	var unified string
	for line := range bytes.Lines(mounts) {
		point, kind, options, ok := mountinfo.Parse(string(line))
		point = filepath.Join(root, point)
		switch {
		case !ok:
		case kind == "cgroup2" && unified == "":
			unified = point
		case kind == "cgroup":
			for _, c := range []string{"memory", "cpu", "pids"} {
				if t.bases[c] == "" && hasOption(options, c) && unix.Access(point, unix.W_OK) == nil {
					t.bases[c] = point
				}
			}
		}
	}
	if len(t.bases) > 0 || unified == "" {
		return t
	}
	if base := delegated(unified, ownCgroup(own)); base != "" {
		t.v2 = true
		t.bases[""] = base
	}
	return t
}

// delegated is the topmost cgroup on the way from the root of the v2 hierarchy
// down to our own in which we may make cgroups with all controllers. It must be
// writable itself, for moving a process needs that of the common ancestor.
func delegated(mount, own string) string {
	dir := mount
	for _, elem := range append([]string{"."}, strings.Split(strings.Trim(own, "/"), "/")...) {
		dir = filepath.Join(dir, elem)
		have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers")) //nolint:gosec // G703: the kernel says the path
		if err != nil || !hasControllers(string(have)) {
			return ""
		}
		writable := true
		for _, name := range []string{".", "cgroup.procs", "cgroup.subtree_control"} {
			// The root has no limits of its own, and anybody with CAP_DAC_OVERRIDE
			// passes this; a read-only mount does not.
			if unix.Access(filepath.Join(dir, name), unix.W_OK) != nil {
				writable = false
			}
		}
		if writable {
			return dir
		}
	}
	return ""
}

// ownCgroup is the v2 entry of /proc/self/cgroup.
func ownCgroup(data []byte) string {
	s := bufio.NewScanner(bytes.NewReader(data)) //nolint:forbidigo // the kernel's file
	for s.Scan() {
		if path, ok := strings.CutPrefix(s.Text(), "0::"); ok {
			return path
		}
	}
	return ""
}

func hasOption(options, want string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == want {
			return true
		}
	}
	return false
}
