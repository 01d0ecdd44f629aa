package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hostMemory returns how much memory there is for sandboxes, in MiB: what the host has,
// or less if a cgroup of this process bounds it.
func hostMemory() (int, error) {
	info, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	total, err := memTotal(string(info))
	if err != nil {
		return 0, err
	}
	for _, path := range memoryLimits() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // no such controller here
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil && n > 0 {
			total = min(total, n) // "max" is no number, v1 has a very large one
		}
	}
	return int(total >> 20), nil
}

// memTotal reads /proc/meminfo, in bytes.
func memTotal(text string) (int64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			if fields := strings.Fields(rest); len(fields) == 2 && fields[1] == "kB" {
				n, err := strconv.ParseInt(fields[0], 10, 64)
				return n << 10, err
			}
		}
	}
	return 0, errors.New("/proc/meminfo has no MemTotal")
}

// memoryLimits are the files that may bound this process and those it starts.
func memoryLimits() []string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil
	}
	var files []string
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, name := "", ""
		switch {
		case parts[0] == "0" && parts[1] == "":
			root, name = "/sys/fs/cgroup", "memory.max"
		case parts[1] == "memory":
			root, name = "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := filepath.Join(root, parts[2]); strings.HasPrefix(dir, root); dir = filepath.Dir(dir) {
			files = append(files, filepath.Join(dir, name))
		}
	}
	return files
}
