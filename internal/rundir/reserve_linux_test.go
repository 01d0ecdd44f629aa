package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

// T36: a machine that could be made can be removed, with no descriptor left to have.
func TestNoDescriptors(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	base := filepath.Join(t.TempDir(), "machines")
	d, err := Create(base, "machine-0001", Record{Driver: "test"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(d.Join("a", "b", "c"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.Join("a", "b", "c", "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	tight := unix.Rlimit{Cur: uint64(slices.Max(reserve.fds)) + 1, Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
		t.Fatal(err)
	}
	var fill []int
	for {
		fd, err := unix.Dup(0)
		if err != nil {
			break
		}
		fill = append(fill, fd)
	}
	_, createErr := Create(base, "machine-0002", Record{Driver: "test"})
	err = d.Remove()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fill {
		_ = unix.Close(fd)
	}
	if !errors.Is(createErr, unix.EMFILE) {
		t.Errorf("create: got %v, want EMFILE", createErr)
	}
	if err != nil {
		t.Errorf("remove: %v", err)
	}
	if entries, err := os.ReadDir(base); err != nil || len(entries) > 0 {
		t.Errorf("got %v, %v, want nothing left", entries, err)
	}
}
