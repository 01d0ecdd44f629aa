package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/local"
)

// T03: a guest that fills its disk gets errors and lives.
func TestDiskFull(t *testing.T) {
	ledger(t)
	m := open(t)
	s, neighbour := create(t, m, bouvet.Config{MemoryMiB: 128}), create(t, m, bouvet.Config{MemoryMiB: 128})
	d, err := local.Driver(t.Context(), options(t))
	if err != nil {
		t.Fatal(err)
	}
	if !d.Features().MemoryLimit {
		t.Skip("this host lets us set no memory limit: run as root, or with a delegated cgroup")
	}
	out, err := s.Command(timed(t), "sh", "-c", "head -c 1000000000 /dev/zero > /big").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "No space left") {
		t.Fatalf("got %q, %v, want no space left", out, err)
	}
	if err := s.WriteFile(timed(t), "/small", strings.Repeat("x", 1<<20)); !errors.Is(err, bouvet.ErrRPC) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("write: got %v, want no space left", err)
	}
	if _, err := s.Client().Upload(timed(t), "/small", io.LimitReader(&endless{}, 8<<20), nil); !errors.Is(err, bouvet.ErrRPC) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("upload: got %v, want no space left", err)
	}
	if got := sh(t, s, "ls -A / | grep '^.bouvet-' || true"); got != "" {
		t.Errorf("half-made files are left: %s", got)
	}
	// A sparse file takes nothing.
	sh(t, s, "rm /big && truncate -s 10T /sparse && echo fine > /small && cat /small")
	if err := neighbour.WriteFile(timed(t), "/big", strings.Repeat("x", 8<<20)); err != nil {
		t.Errorf("a neighbour: %v", err)
	}
	answers(t, s)
}

// T31: an image that is not what it was is refused before anything runs on it.
func TestDamagedImage(t *testing.T) {
	original := imagetest.Default(t)
	for name, damage := range map[string]func(f *os.File) error{
		"truncated to a page":     func(f *os.File) error { return f.Truncate(4096) },
		"truncated in the middle": func(f *os.File) error { return f.Truncate(1 << 20) },
		"empty":                   func(f *os.File) error { return f.Truncate(0) },
		"no superblock":           func(f *os.File) error { _, err := f.WriteAt(make([]byte, 128), 1024); return err },
		"flipped superblock":      func(f *os.File) error { return flip(f, 1024+16) },
		"garbage": func(f *os.File) error {
			_, err := f.WriteAt(bytes.Repeat([]byte("garbage "), 1<<10), 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ledger(t)
			path := filepath.Join(t.TempDir(), "image.erofs")
			f := beginning(t, original, path)
			if err := errors.Join(damage(f), f.Close()); err != nil {
				t.Fatal(err)
			}
			m := open(t)
			s, err := m.CreateSandbox(timed(t), bouvet.Config{ID: newID(), RootfsPath: path, ConnectTimeout: 20 * time.Second})
			if err == nil {
				t.Fatalf("a sandbox runs on it: %v", s.ID())
			}
			if !errors.Is(err, bouvet.ErrVM) || len(err.Error()) > 8<<10 {
				t.Errorf("got %v, want a VM error", err)
			}
			t.Log(err)
		})
	}
}

// beginning copies the first 2 MiB of a file.
func beginning(t *testing.T, from, to string) *os.File {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(out, in, 2<<20); err != nil {
		t.Fatal(err)
	}
	return out
}

func flip(f *os.File, at int64) error {
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		return err
	}
	b[0] ^= 0x55
	_, err := f.WriteAt(b, at)
	return err
}

// T31: the store notices a single bit, whatever the image's time says.
func TestBitOfStoredImageFlipped(t *testing.T) {
	ledger(t)
	dir := filepath.Join(t.TempDir(), "state")
	o := options(t)
	o.StateDir, o.Defaults = dir, bouvet.Config{}
	store, err := local.Store(o)
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	if err := os.MkdirAll(filepath.Join(tree, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(tree, "etc", "data"), bytes.Repeat([]byte("data"), 1<<16), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := store.Import(timed(t), "small", tree, image.ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(info.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	before, err := f.Stat()
	if err == nil {
		err = flip(f, info.Size/2)
	}
	if err := errors.Join(err, f.Close(), os.Chtimes(info.Path, before.ModTime(), before.ModTime())); err != nil {
		t.Fatal(err)
	}
	m := openWith(t, o)
	if s, err := m.CreateSandbox(timed(t), bouvet.Config{ID: newID(), Image: "small"}); !errors.Is(err, image.ErrCorrupt) {
		t.Errorf("got %v, %v, want ErrCorrupt", s, err)
	}
}

// T37: the guest's clocks go as the host's do.
func TestClock(t *testing.T) {
	s := box(t, bouvet.Config{})
	read := func() (wall, mono time.Duration) {
		t.Helper()
		f := strings.Fields(sh(t, s, "python3 -c 'import time; print(time.time_ns(), time.monotonic_ns())'"))
		return time.Duration(atoi(t, f[0])), time.Duration(atoi(t, f[1]))
	}
	before := time.Now()
	wall, mono := read()
	if after := time.Now(); wall < time.Duration(before.Add(-time.Second).UnixNano()) || wall > time.Duration(after.Add(time.Second).UnixNano()) {
		t.Errorf("the guest's clock: got %v, want between %v and %v", time.Unix(0, int64(wall)), before, after)
	}
	sh(t, s, "sleep 0.3")
	wall2, mono2 := read()
	took := time.Since(before)
	for name, passed := range map[string]time.Duration{"wall": wall2 - wall, "monotonic": mono2 - mono} {
		if passed < 300*time.Millisecond || passed > took+time.Second {
			t.Errorf("%s clock: %v passed of at most %v", name, passed, took)
		}
	}
	if out, err := s.Command(timed(t), "date", "-s", "2001-01-01").CombinedOutput(); err == nil {
		t.Logf("root of the guest set a clock: %q", out)
	}
	if now := time.Now(); now.Year() == 2001 {
		t.Fatal("the guest set the host's clock")
	}
}

// What cannot be had is an error, and the next try succeeds when it can.
func TestNoDescriptorsLeft(t *testing.T) {
	ledger(t)
	m := open(t)
	warm := create(t, m, bouvet.Config{}) // so that what is opened once is open
	fillHoles(t)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	// T36: EMFILE at each step of a creation.
	for room := range uint64(17) {
		tight := unix.Rlimit{Cur: uint64(openFiles(t)) + room, Max: old.Max}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &tight); err != nil {
			t.Fatal(err)
		}
		s, err := m.CreateSandbox(context.Background(), bouvet.Config{ID: newID(), ConnectTimeout: limit})
		if back := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); back != nil {
			t.Fatal(back)
		}
		if err == nil {
			if err := m.Destroy(timed(t), s.ID()); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, unix.EMFILE) && !strings.Contains(err.Error(), "too many open files") {
			t.Errorf("room for %d: %v", room, err)
		}
		if got := len(m.List()); got != 1 {
			t.Errorf("room for %d: %d sandboxes are listed, want 1", room, got)
		}
	}
	answers(t, warm)
	create(t, m, bouvet.Config{})
}

// fillHoles takes, until the test ends, the descriptors that are free below one in
// use: a limit is one on their numbers, not on how many they are.
func fillHoles(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			highest = max(highest, fd)
		}
	}
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		if fd >= highest {
			return
		}
	}
}
