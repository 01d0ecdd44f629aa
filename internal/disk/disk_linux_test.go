package disk

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func testMaker(t *testing.T) *Maker {
	t.Helper()
	found := false
	for _, p := range mkfsPaths {
		_, err := exec.LookPath(p)
		found = found || err == nil
	}
	if !found {
		t.Skip("there is no mkfs.ext4: run `apt-get install e2fsprogs`")
	}
	return &Maker{Dir: filepath.Join(t.TempDir(), "disks")}
}

func isExt4(t *testing.T, f *os.File) bool {
	t.Helper()
	magic := make([]byte, 2)
	if _, err := f.ReadAt(magic, 1024+56); err != nil {
		t.Fatal(err)
	}
	return string(magic) == "\x53\xef"
}

// A disk has its size, and takes next to no room; the next one is not made again.
func TestNew(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	m := testMaker(t)
	for _, mib := range []int{vm.MinDiskMiB, 1000, vm.MaxDiskMiB} {
		for i := range 2 {
			f, err := m.New(t.Context(), filepath.Join(t.TempDir(), "disk"), mib)
			if err != nil {
				t.Fatal(err)
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size != int64(mib)<<20 || st.Blocks*512 > 16<<20 {
				t.Errorf("%d MiB: got %d bytes, which take %d, %v", mib, st.Size, st.Blocks*512, err)
			}
			if !isExt4(t, f) {
				t.Errorf("%d MiB: it holds no file system", mib)
			}
			_ = f.Close()
			if i == 0 {
				m.Programs = []string{"/no/such/mkfs"}
			}
		}
		m.Programs = nil
	}
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.Symlink("/dev/null", path); err != nil {
		t.Fatal(err)
	}
	if _, err := m.New(t.Context(), path, vm.MinDiskMiB); !errors.Is(err, os.ErrExist) {
		t.Errorf("where something is: got %v, want ErrExist", err)
	}
}

// Where it cannot be made, that is said with the remedy, and nothing is left.
func TestNewFails(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	m := &Maker{Dir: filepath.Join(t.TempDir(), "disks")}
	if err := os.Mkdir(m.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	abandoned := filepath.Join(m.Dir, tempPrefix+"old")
	if err := os.WriteFile(abandoned, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * tempLifetime)
	if err := os.Chtimes(abandoned, long, long); err != nil {
		t.Fatal(err)
	}
	silent := filepath.Join(t.TempDir(), "mkfs")
	if err := os.WriteFile(silent, []byte("#!/bin/sh\nexec sleep 4711\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		program string
		limit   time.Duration
		want    string
	}{
		{"/no/such/mkfs", time.Minute, "apt-get install e2fsprogs"},
		{"/bin/false", time.Minute, "mkfs.ext4 failed: exit status 1"},
		{silent, 50 * time.Millisecond, "deadline"},
	} {
		m.Programs = []string{tt.program}
		ctx, cancel := context.WithTimeout(t.Context(), tt.limit)
		_, err := m.New(ctx, filepath.Join(t.TempDir(), "disk"), vm.MinDiskMiB)
		cancel()
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", tt.program, err, tt.want)
		}
		if errors.Is(err, vm.ErrUnsupported) != strings.HasPrefix(tt.program, "/no") {
			t.Errorf("%s: got %v, want ErrUnsupported only where there is none", tt.program, err)
		}
		if entries, err := os.ReadDir(m.Dir); err != nil || len(entries) > 0 {
			t.Errorf("%s: left %v, %v", tt.program, entries, err)
		}
	}
}
