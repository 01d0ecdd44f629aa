package testutil

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// addMounts notes mounts of our mount namespace in or of a directory of the
// scope; with Host, all of them.
func (l *ledger) addMounts(v inventory) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(b)) {
		// 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw
		line = strings.TrimSpace(line)
		fields := strings.Fields(line)
		if len(fields) < 6 || (!l.scope.Host && !l.mentions(line)) {
			continue
		}
		_, source, _ := strings.Cut(line, " - ")
		v.add("mount", fields[0]+" "+fields[4], fields[4]+" ("+source+", root "+fields[3]+")")
	}
}

// addNamespaces notes named network namespaces. Without Host only those that
// carry the name "bouvet" are looked at.
func (l *ledger) addNamespaces(v inventory) {
	for _, dir := range []string{"/run/netns", "/var/run/netns"} {
		if resolved, err := filepath.EvalSymlinks(dir); err != nil || resolved != dir {
			continue // /var/run is usually a link to /run
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if l.scope.Host || strings.Contains(e.Name(), "bouvet") {
				path := filepath.Join(dir, e.Name())
				v.add("network namespace", path, path)
			}
		}
	}
}

// addCgroups notes the cgroups below the scope's parents, in every hierarchy.
func (l *ledger) addCgroups(v inventory) {
	if len(l.scope.Cgroups) == 0 {
		return
	}
	for _, root := range hierarchies() {
		for _, pattern := range l.scope.Cgroups {
			parents, err := filepath.Glob(filepath.Join(root, pattern))
			if err != nil {
				continue
			}
			for _, top := range parents {
				walk(top, func(path string, d fs.DirEntry) {
					if d.IsDir() && path != top {
						v.add("cgroup", path, path)
					}
				})
			}
		}
	}
}

// hierarchies returns the root of each cgroup hierarchy: the directories below
// /sys/fs/cgroup under version 1, that directory itself under version 2.
func hierarchies() []string {
	const base = "/sys/fs/cgroup"
	if _, err := os.Lstat(filepath.Join(base, "cgroup.controllers")); err == nil {
		return []string{base}
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return nil
	}
	var roots []string
	for _, e := range entries {
		if e.IsDir() { // cpu and cpuacct are links to cpu,cpuacct
			roots = append(roots, filepath.Join(base, e.Name()))
		}
	}
	return roots
}

// addFiles notes everything below the scope's directories.
func (l *ledger) addFiles(v inventory) {
	for _, dir := range l.scope.Dirs {
		walk(dir, func(path string, d fs.DirEntry) {
			kind := "file"
			if d.IsDir() {
				kind = "directory"
			}
			v.add(kind, path, path)
		})
	}
}

// walk visits top and what is below it on the same file system, not following
// links. What disappears meanwhile is passed over.
func walk(top string, visit func(path string, d fs.DirEntry)) {
	device, ok := deviceOf(top)
	if !ok {
		return
	}
	_ = filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error { //nolint:gosec // a test chose it
		if err != nil {
			return nil //nolint:nilerr // gone since its directory was read
		}
		visit(path, d)
		if d.IsDir() {
			if here, ok := deviceOf(path); !ok || here != device {
				return fs.SkipDir // a mount point
			}
		}
		return nil
	})
}

func deviceOf(path string) (uint64, bool) {
	info, err := os.Lstat(path) //nolint:gosec // a test chose it
	if err != nil {
		return 0, false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return st.Dev, true
}
