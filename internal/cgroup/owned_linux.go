package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Owned reports whether path can be a cgroup of machine id: one of that name,
// with a parent that is not the root of its hierarchy, or none any more. A sweep
// kills all that is in a machine's cgroups, so the record that names them is not
// believed alone (threat T34).
func Owned(path, id string) bool {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || filepath.Base(path) != id {
		return false
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	for range 3 {
		var s unix.Statfs_t
		if unix.Statfs(path, &s) != nil || s.Type != unix.CGROUP_SUPER_MAGIC && s.Type != unix.CGROUP2_SUPER_MAGIC {
			return false
		}
		path = filepath.Dir(path)
	}
	return true
}
