package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ledger is everything of machines below a state directory that is to be found on
// the host, whoever owns it.
func ledger(t testing.TB, d *Driver) []string {
	t.Helper()
	var found []string
	entries, _ := os.ReadDir(d.keeper.Base)
	for _, e := range entries {
		found = append(found, "directory "+e.Name())
	}
	procs, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// A process on its way out has no command line any more, but is there.
		cmdline, _ := os.ReadFile(filepath.Join("/proc", p.Name(), "cmdline"))
		if strings.Contains(string(cmdline), d.keeper.Base) && strings.Contains(string(cmdline), "runsc") {
			found = append(found, fmt.Sprintf("process %d %.200q", pid, cmdline))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.keeper.Base) {
			found = append(found, "mount "+line)
		}
	}
	return found
}

// cgroupsOf are the cgroups named after machines.
func cgroupsOf(t testing.TB, d *Driver, ids ...string) []string {
	t.Helper()
	var found []string
	for _, id := range ids {
		for _, dir := range d.keeper.Cgroups.Dirs(id) {
			if _, err := os.Lstat(dir); err == nil {
				found = append(found, "cgroup "+dir)
			}
		}
	}
	return found
}

// wantNothing fails unless the ledger is empty.
func wantNothing(t testing.TB, d *Driver, ids ...string) {
	t.Helper()
	if got := slices.Concat(ledger(t, d), cgroupsOf(t, d, ids...)); len(got) > 0 {
		t.Errorf("left over: %s", strings.Join(got, "\n\t"))
	}
}
