package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// forge makes a snapshot of c that is whole, with these files, and nonsense in them.
func forge(t *testing.T, d *Driver, c vm.Config, change func(m *snapshot.Manifest), files ...string) string {
	t.Helper()
	dir := private(t)
	accel, err := d.Acceleration(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	m, err := d.manifest(testContext(t), &c, accel.Name)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(&m)
	}
	for _, name := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == ramName {
			if err := os.Truncate(filepath.Join(dir, name), int64(c.MemoryMiB)<<20); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := snapshot.Write(testContext(t), dir, m, files...); err != nil {
		t.Fatal(err)
	}
	return dir
}

// T31: what does not belong here is refused before anything is started, and what
// QEMU refuses leaves nothing.
func TestBadSnapshot(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d, c := testDriver(t, testOptions(t, t.TempDir())), newConfig(t)
	c.ImageDigest = "sha256:" + strings.Repeat("1", 64)
	whole := []string{ramName, stateName}
	edit := func(change func(m map[string]any)) func(dir string) {
		return func(dir string) {
			path := filepath.Join(dir, "manifest.json")
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			m := map[string]any{}
			if err := json.Unmarshal(data, &m); err != nil {
				t.Fatal(err)
			}
			change(m)
			if data, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, tt := range []struct {
		name   string
		here   func(c *vm.Config)
		change func(m *snapshot.Manifest)
		files  []string
		spoil  func(dir string)
		starts bool // QEMU has to refuse it
		want   string
	}{
		{name: "other memory", here: func(c *vm.Config) { c.MemoryMiB++ }, want: "memory in MiB"},
		{name: "other processors", here: func(c *vm.Config) { c.VCPUs++ }, want: "number of vCPUs"},
		{name: "other disk", here: func(c *vm.Config) { c.DiskMiB = 16 }, want: "disk in MiB"},
		{name: "other image", here: func(c *vm.Config) { c.ImageDigest = "sha256:" + strings.Repeat("2", 64) }, want: "image"},
		{name: "other kernel", change: func(m *snapshot.Manifest) { m.Kernel = "x" }, want: "guest kernel"},
		{name: "other QEMU", change: func(m *snapshot.Manifest) { m.DriverVersion = strings.Replace(m.DriverVersion, ".", ".9", 1) }, want: "driver version"},
		{name: "other processor", change: func(m *snapshot.Manifest) { m.CPU = "x" }, want: "processor"},
		{name: "other driver", change: func(m *snapshot.Manifest) { m.Driver = "firecracker" }, want: "driver"},
		{name: "other clock", change: func(m *snapshot.Manifest) { m.Details[detailTSC] = "1000" }, want: "ticks at 1000 kHz"},
		{name: "no clock", change: func(m *snapshot.Manifest) { m.Details = nil }, want: detailTSC},
		{name: "no memory", files: []string{stateName}, want: "no file memory"},
		{name: "another file", files: []string{ramName, stateName, "command"}, want: `a file "command"`},
		{name: "a file twice", files: []string{ramName, stateName, stateName}, want: `a file "devices"`},
		{name: "a disk of none", files: []string{ramName, stateName, diskName}, want: `a file "disk"`},
		{name: "truncated", spoil: func(dir string) {
			if err := errors.Join(os.Chmod(filepath.Join(dir, ramName), 0o600), os.Truncate(filepath.Join(dir, ramName), 4096)); err != nil {
				t.Fatal(err)
			}
		}, want: "has 4096 bytes"},
		{name: "bit flip", spoil: func(dir string) {
			path := filepath.Join(dir, stateName)
			if err := errors.Join(os.Chmod(path, 0o600), os.WriteFile(path, []byte("nonsensf"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}, want: "devices is damaged"},
		{name: "a link", spoil: func(dir string) {
			path := filepath.Join(dir, ramName)
			if err := errors.Join(os.Rename(path, path+"2"), os.Symlink(ramName+"2", path)); err != nil {
				t.Fatal(err)
			}
		}, want: "symbolic link"},
		{name: "injected key", spoil: edit(func(m map[string]any) { m["arguments"] = []string{"-daemonize"} }), want: "unknown field"},
		{name: "nonsense", starts: true, want: "cannot restore the state of devices"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := tt.files
			if files == nil {
				files = whole
			}
			dir := forge(t, d, c, tt.change, files...)
			if tt.spoil != nil {
				tt.spoil(dir)
			}
			c := c
			c.ID = newConfig(t).ID
			if tt.here != nil {
				tt.here(&c)
			}
			program := d.program
			if !tt.starts {
				d.program = script(t, "echo was started >&2; exit 1")
				d.qemu.of = programStamp(t, d.program)
				defer func() { d.program, d.qemu.of = program, programStamp(t, program) }()
			}
			m, err := d.Restore(testContext(t), c, dir)
			if err == nil {
				_ = m.Destroy(testContext(t), 0)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, vm.ErrBadSnapshot) == tt.starts {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if entries, _ := os.ReadDir(d.keeper.Base); len(entries) > 0 {
				t.Errorf("left %v", entries)
			}
			if len(d.rams.all) > 0 {
				t.Errorf("memory is left: %v", d.rams.all)
			}
		})
	}
}

func programStamp(t *testing.T, path string) [4]int64 {
	t.Helper()
	of, err := fileStamp(path)
	if err != nil {
		t.Fatal(err)
	}
	return of
}

// Whenever a caller gives up, nothing is left, and the machine is what it was.
func TestCancelSnapshot(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d, c := testDriver(t, testOptions(t, t.TempDir())), newConfig(t)
	c.ImageDigest = "sha256:" + strings.Repeat("1", 64)
	m, a := create(t, d, c)
	begin := time.Now()
	good := save(t, m)
	took := time.Since(begin)
	const instants = 12
	cancelled := 0
	for i := range instants {
		dir := private(t)
		ctx, cancel := context.WithTimeout(testContext(t), took*time.Duration(i)/instants)
		err := m.Snapshot(ctx, dir)
		cancel()
		entries, readErr := os.ReadDir(dir)
		switch {
		case readErr != nil:
			t.Fatal(readErr)
		case err == nil:
			if _, err := snapshot.Open(testContext(t), dir); err != nil {
				t.Errorf("instant %d: %v", i, err)
			}
		case !errors.Is(err, context.DeadlineExceeded) || len(entries) > 0:
			t.Errorf("instant %d: got %v, and left %v", i, err, entries)
		default:
			cancelled++
		}
		if err := a.Ping(testContext(t)); err != nil {
			t.Fatalf("instant %d: the machine does not answer: %v", i, err)
		}
	}
	if cancelled == 0 {
		t.Error("no attempt was cancelled")
	}
	begin = time.Now()
	r, _ := restore(t, d, c, good)
	took = time.Since(begin)
	if err := r.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	cancelled = 0
	for i := range instants {
		again := c
		again.ID = newConfig(t).ID
		ctx, cancel := context.WithTimeout(testContext(t), took*time.Duration(i)/instants)
		r, err := d.Restore(ctx, again, good)
		cancel()
		if err == nil {
			if err := r.Destroy(testContext(t), 0); err != nil {
				t.Fatal(err)
			}
			continue
		}
		cancelled++
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("instant %d: got %v", i, err)
		}
		if _, err := os.Stat(filepath.Join(d.keeper.Base, again.ID)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("instant %d: something is left: %v", i, err)
		}
	}
	if cancelled == 0 {
		t.Error("no attempt was cancelled")
	}
	if len(d.rams.all) > 0 {
		t.Errorf("memory is left: %v", d.rams.all)
	}
	// A machine that is paused stays paused.
	if err := m.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		save(t, m)
	}
	late, cancel := context.WithTimeout(testContext(t), 100*time.Millisecond)
	defer cancel()
	if err := a.Ping(late); err == nil {
		t.Error("a paused machine answers after it was saved")
	}
	if err := m.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := a.Ping(testContext(t)); err != nil {
		t.Error(err)
	}
}
