package gvisor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// savable is testConfig with the image's digest, which takes a while to compute.
func savable(t testing.TB) vm.Config {
	t.Helper()
	c := testConfig(t)
	digest, known := digests.Load(c.Image)
	if !known {
		var err error
		if digest, err = snapshot.ImageDigest(t.Context(), &c); err != nil {
			t.Fatal(err)
		}
		digests.Store(c.Image, digest)
	}
	c.ImageDigest = digest.(string)
	return c
}

// digests are those of images, by path.
var digests sync.Map

func wantEmpty(t testing.TB, dir string) {
	t.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("%s: got %v, %v, want nothing in it", dir, entries, err)
	}
}

func save(t testing.TB, m vm.Machine) string {
	t.Helper()
	dir := t.TempDir()
	if err := m.Snapshot(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func restore(t testing.TB, d *Driver, c vm.Config, dir string) vm.Machine {
	t.Helper()
	m, err := d.Restore(testContext(t), c, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	})
	return m
}

// A counter lives in the memory of a guest's process; each asking adds to it.
const (
	startCounter = `mkfifo /in /out; (n=0; while :; do read x </in; n=$((n+x)); echo $n >/out; done) >/dev/null 2>&1 & `
	addOne       = `echo 1 >/in; cat /out`
)

// What a machine was is what its copies are, whether it ran or was paused, and so are
// the copies' copies, made by whichever process.
func TestSnapshot(t *testing.T) {
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused=%v", paused), func(t *testing.T) {
			ledgered(t)
			d := testDriver(t)
			m := create(t, d, savable(t))
			says(t, m, startCounter+"echo disk >/file; echo tmp >/tmp/file", "")
			says(t, m, addOne, "1")
			if paused {
				if err := m.Pause(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			dir := save(t, m)
			if paused {
				if _, err := ask(briefly(t), m, "ping"); err == nil {
					t.Error("a paused machine runs after it was saved")
				}
				if err := m.Resume(testContext(t)); err != nil {
					t.Fatal(err)
				}
			}
			says(t, m, addOne, "2")
			says(t, m, "rm /file", "")

			fresh, err := New(options(d))
			if err != nil {
				t.Fatal(err)
			}
			c := savable(t)
			c.Hostname = "clone"
			copied := restore(t, fresh, c, dir)
			says(t, copied, addOne, "2")
			says(t, copied, "cat /file /tmp/file | paste -sd ,", "disk,tmp")
			says(t, copied, "hostname", "clone")
			says(t, copied, "nproc; grep -o '131072 kB' /proc/meminfo", "2\n131072 kB")
			says(t, copied, "echo console >/proc/1/fd/1", "")
			if got := string(copied.Console()); !strings.HasPrefix(got, "console\n") {
				t.Errorf("console: got %q", got)
			}

			again := restore(t, d, savable(t), save(t, copied))
			says(t, again, addOne, "3")
			says(t, again, "cat /file", "disk")
			says(t, m, addOne, "3")
		})
	}
}

// Ten copies of one snapshot live at once, and none sees what the others do.
func TestClonesDiverge(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	says(t, m, startCounter+"echo 0 >/file", "")
	dir := save(t, m)
	var clones []vm.Machine
	for range 10 {
		clones = append(clones, restore(t, d, savable(t), dir))
	}
	var all sync.WaitGroup
	for i, clone := range clones {
		all.Go(func() {
			says(t, clone, fmt.Sprintf("echo %d >/in; cat /out >/dev/null; echo %d >/file", 100*i, i), "")
		})
	}
	all.Wait()
	random := map[string]bool{}
	for i, clone := range clones {
		says(t, clone, addOne+" /file | paste -sd ,", fmt.Sprintf("%d,%d", 100*i+1, i))
		got, err := ask(testContext(t), clone, "od -An -tx8 -N16 /dev/urandom")
		if err != nil || random[got] {
			t.Errorf("clone %d: random bytes %q, %v, want others than its siblings'", i, got, err)
		}
		random[got] = true
	}
	says(t, m, addOne+" /file | paste -sd ,", "1,0")
}

// T32: a call that ends at any instant leaves nothing, and the machine as it was.
func TestSnapshotCancelled(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	says(t, m, startCounter, "")
	start := time.Now()
	good := save(t, m)
	whole := time.Since(start)
	cancelled := 0
	for i := range 25 {
		dir := t.TempDir()
		ctx, cancel := context.WithTimeout(testContext(t), rand.N(whole))
		err := m.Snapshot(ctx, dir)
		cancel()
		switch {
		case err == nil:
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("got %v, want DeadlineExceeded", err)
		default:
			cancelled++
			wantEmpty(t, dir)
		}
		says(t, m, addOne, fmt.Sprint(i+1))
	}
	start = time.Now()
	if err := restore(t, d, savable(t), good).Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	whole = time.Since(start)
	for range 25 {
		c := savable(t)
		ctx, cancel := context.WithTimeout(testContext(t), rand.N(whole))
		r, err := d.Restore(ctx, c, good)
		cancel()
		switch {
		case err == nil:
			if err := r.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		case !errors.Is(err, context.DeadlineExceeded):
			t.Errorf("got %v, want DeadlineExceeded", err)
		default:
			cancelled++
		}
		if got := cgroupsOf(t, d, c.ID); len(got) > 0 {
			t.Errorf("left over: %v", got)
		}
		if _, err := os.Stat(filepath.Join(d.keeper.Base, c.ID)); err == nil {
			t.Errorf("left over: the directory of %s", c.ID)
		}
	}
	t.Logf("%d of 50 cancelled", cancelled)
	if cancelled == 0 {
		t.Error("nothing was cancelled")
	}
	says(t, restore(t, d, savable(t), good), addOne, "1")
}

// memoryDisk is a small file system in memory.
func memoryDisk(t *testing.T, size string) string {
	t.Helper()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=0700,size="+size); err != nil {
		t.Skipf("cannot mount a file system (%v): run as root, `sudo -E go test ./vm/gvisor`", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// T36: a full disk is an error, wherever the state meets it, and the machine goes on.
func TestSnapshotFullDisk(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	says(t, m, startCounter+"head -c 32M /dev/urandom >/file", "")
	for i, size := range []string{"64k", "1m", "8m", "24m"} {
		disk := memoryDisk(t, size)
		err := m.Snapshot(testContext(t), disk)
		if !errors.Is(err, unix.ENOSPC) {
			t.Errorf("%s: got %v, want that no space is left", size, err)
		}
		wantEmpty(t, disk)
		says(t, m, addOne, fmt.Sprint(i+1))
	}
	says(t, restore(t, d, savable(t), save(t, m)), addOne, "5")
}

// T02: what is saved does not count as the machine's memory, so that one that uses all
// of it can be saved into a file system in memory.
func TestSnapshotIntoMemory(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	says(t, m, startCounter+"head -c 100M /dev/urandom >/file; sha256sum </file >/sum", "")
	disk := memoryDisk(t, "1g")
	if err := m.Snapshot(testContext(t), disk); err != nil {
		t.Fatal(err)
	}
	says(t, m, addOne, "1")
	says(t, restore(t, d, savable(t), disk), addOne+"; sha256sum </file | cmp - /sum", "1")
}
