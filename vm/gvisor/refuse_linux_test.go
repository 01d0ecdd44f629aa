package gvisor

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/vm"
)

// copyDir is a copy of a snapshot, writable.
func copyDir(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err == nil {
			err = os.WriteFile(filepath.Join(to, e.Name()), data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// edit changes the manifest of a snapshot.
func edit(t testing.TB, dir string, change func(m map[string]any)) {
	t.Helper()
	path := filepath.Join(dir, "manifest.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	if data, err = json.Marshal(m); err == nil {
		err = os.WriteFile(path, data, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func change(t testing.TB, path string, f func([]byte) []byte) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, f(data), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// T31: a snapshot that is not to the bit what was saved, or not for here, is refused
// before anything is made.
func TestRestoreRefuses(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	good := save(t, m)
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	set := func(key string, value any) func(*testing.T, string, *vm.Config) {
		return func(t *testing.T, dir string, _ *vm.Config) {
			edit(t, dir, func(m map[string]any) { m[key] = value })
		}
	}
	for _, tt := range []struct {
		name   string
		change func(t *testing.T, dir string, c *vm.Config)
		want   string
	}{
		{"no manifest", func(t *testing.T, dir string, _ *vm.Config) {
			if err := os.Remove(filepath.Join(dir, "manifest.json")); err != nil {
				t.Fatal(err)
			}
		}, "manifest.json"},
		{"no such directory", func(t *testing.T, dir string, _ *vm.Config) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		{"truncated", func(t *testing.T, dir string, _ *vm.Config) {
			change(t, filepath.Join(dir, stateFile), func(b []byte) []byte { return b[:len(b)-1] })
		}, "bytes, want"},
		{"empty", func(t *testing.T, dir string, _ *vm.Config) {
			change(t, filepath.Join(dir, stateFile), func([]byte) []byte { return nil })
		}, "bytes, want"},
		{"a bit of the first block", func(t *testing.T, dir string, _ *vm.Config) {
			change(t, filepath.Join(dir, stateFile), func(b []byte) []byte { b[100] ^= 1; return b })
		}, "damaged"},
		{"a bit in the middle", func(t *testing.T, dir string, _ *vm.Config) {
			change(t, filepath.Join(dir, stateFile), func(b []byte) []byte { b[len(b)/2] ^= 4; return b })
		}, "damaged"},
		{"a file is gone", func(t *testing.T, dir string, _ *vm.Config) {
			if err := os.Remove(filepath.Join(dir, stateFile)); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		{"a file is a symbolic link", func(t *testing.T, dir string, _ *vm.Config) {
			path := filepath.Join(dir, stateFile)
			if err := errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path)); err != nil {
				t.Fatal(err)
			}
		}, "symbolic link"},
		{"another file", func(t *testing.T, dir string, _ *vm.Config) {
			path := filepath.Join(dir, stateFile)
			if err := os.Rename(path, filepath.Join(dir, "other.img")); err != nil {
				t.Fatal(err)
			}
			edit(t, dir, func(m map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = "other.img" })
		}, "files are not those"},
		{"a file twice", func(t *testing.T, dir string, _ *vm.Config) {
			edit(t, dir, func(m map[string]any) { m["files"] = append(m["files"].([]any), m["files"].([]any)[0]) })
		}, ""},
		{"an unknown key", set("exec", "/bin/sh"), "unknown field"},
		{"an unknown detail", set("details", map[string]string{detailHostBound: "true", "exec": "/bin/sh"}), "details"},
		{"no details", set("details", nil), "details"},
		{"another build", set("driver_version", "runsc v0 VERSION_MISSING layout 0"), "driver version"},
		{"another driver", set("driver", "qemu"), "driver"},
		{"another processor", set("cpu", "8086"), "processor"},
		{"another agent", set("kernel", "sha256:0"), "guest kernel"},
		{"another format", set("format", 2), "format"},
		{"garbage", func(t *testing.T, dir string, _ *vm.Config) {
			change(t, filepath.Join(dir, "manifest.json"), func([]byte) []byte { return bytes.Repeat([]byte("["), 1<<20) })
		}, "manifest"},
		{"another image", func(_ *testing.T, _ string, c *vm.Config) { c.ImageDigest = "sha256:" + strings.Repeat("0", 64) }, "image"},
		{"another memory size", func(_ *testing.T, _ string, c *vm.Config) { c.MemoryMiB = 256 }, "memory"},
		{"another number of processors", func(_ *testing.T, _ string, c *vm.Config) { c.VCPUs = 1 }, "vCPUs"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, c := copyDir(t, good), savable(t)
			tt.change(t, dir, &c)
			r, err := d.Restore(testContext(t), c, dir)
			if err == nil {
				t.Fatalf("got a machine: %v", r.Destroy(testContext(t), 0))
			}
			if !errors.Is(err, vm.ErrBadSnapshot) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want ErrBadSnapshot that says %q", err, tt.want)
			}
			if len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			wantNothing(t, d, c.ID)
		})
	}

	// What lies beside the files of a snapshot is not looked at; runsc would.
	dir := copyDir(t, good)
	if err := os.WriteFile(filepath.Join(dir, "gcs_opts.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	says(t, restore(t, d, savable(t), dir), "ping", "pong")
}

// What the driver cannot do is refused with the reason, before anything is made.
func TestUnsupported(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := savable(t)
	c.DiskMiB = 64
	if _, err := d.Create(testContext(t), c); !errors.Is(err, vm.ErrUnsupported) || !strings.Contains(err.Error(), "disk") {
		t.Errorf("a disk: got %v, want ErrUnsupported", err)
	}
	if d.Features().Disk {
		t.Error("Features promises disks")
	}
	wantNothing(t, d, c.ID)

	// An agent that ends with its owner cannot be talked out of it.
	good := save(t, create(t, d, savable(t)))
	c = savable(t)
	c.Detached = true
	if _, err := d.Restore(testContext(t), c, good); !errors.Is(err, vm.ErrUnsupported) {
		t.Errorf("detached from bound: got %v, want ErrUnsupported", err)
	}
	if got := cgroupsOf(t, d, c.ID); len(got) > 0 {
		t.Errorf("left over: %v", got)
	}
}

// Two builds that differ in what a saved machine depends on do not look alike.
func TestBuildOf(t *testing.T) {
	own, err := buildOf(ownExe)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(own, "v0.") && !strings.Contains(own, "sha256:") {
		t.Errorf("got %s, want gVisor's version or a digest", own)
	}
	other, err := buildOf("/bin/true")
	if err != nil || other == own || !strings.Contains(other, "sha256:") {
		t.Errorf("another executable: got %s, %v, want its digest", other, err)
	}
	if _, err := buildOf(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no executable: got %v", err)
	}
	t.Log(own)

	exe := os.Getenv("BOUVET_HELPER")
	if exe == "" {
		t.Skip("BOUVET_HELPER names no bin/bouvet, whose build information is to be read: `make build`, then BOUVET_HELPER=$PWD/bin/bouvet")
	}
	if v := moduleOf(exe); !strings.HasPrefix(v, "v0.") {
		t.Errorf("gVisor's version in %s: got %q", exe, v)
	}
}
