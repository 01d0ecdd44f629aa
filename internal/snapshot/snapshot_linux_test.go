package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm"
)

const testSize = 1 << 20

// private is a directory of ours alone.
func privateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// sparse makes a file of testSize bytes with data at some places.
func sparse(t *testing.T, path string, data map[int64]string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if err := f.Truncate(testSize); err != nil {
		t.Fatal(err)
	}
	for at, s := range data {
		if _, err := f.WriteAt([]byte(s), at); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func testManifest() Manifest {
	c := vm.Config{ImageDigest: "sha256:" + strings.Repeat("0", 64), MemoryMiB: 128, VCPUs: 2, DiskMiB: 16}
	m := Of(&c, "driver", "1.2.3", "cpu")
	m.Kernel, m.Details = "kernel", map[string]string{"detail": "1"}
	return m
}

// save makes a snapshot of two files.
func save(t *testing.T) string {
	t.Helper()
	dir := privateDir(t)
	sparse(t, filepath.Join(dir, "memory"), map[int64]string{0: "a", 300_000: strings.Repeat("b", 9000)})
	sparse(t, filepath.Join(dir, "devices"), nil)
	if err := Prepare(privateDir(t)); err != nil {
		t.Fatal(err)
	}
	if err := Write(t.Context(), dir, testManifest(), "memory", "devices"); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWriteAndOpen(t *testing.T) {
	dir := save(t)
	m, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	here := testManifest()
	if err := m.Match(&here); err != nil {
		t.Errorf("Match: %v", err)
	}
	if len(m.Files) != 2 || m.Files[0].Name != "memory" || m.Files[0].Size != testSize || m.Details["detail"] != "1" || m.Created.IsZero() {
		t.Errorf("got %+v", m)
	}
	for _, f := range m.Files {
		info, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil || info.Mode().Perm() != 0o400 {
			t.Errorf("%s: got %v, %v, want it read-only", f.Name, info, err)
		}
	}
	if err := Clear(dir); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("Clear left %v, %v", entries, err)
	}
}

// T31: whatever was done to a snapshot is found, and said.
func TestRefused(t *testing.T) {
	edit := func(change func(m map[string]any)) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, manifestName)
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var m map[string]any
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
	file := func(change func(path string) error) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, "memory")
			if err := os.Chmod(path, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := change(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(at int64) func(path string) error {
		return func(path string) error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			b := make([]byte, 1)
			_, err = f.ReadAt(b, at)
			b[0] ^= 1
			_, err2 := f.WriteAt(b, at)
			return errors.Join(err, err2, f.Close())
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, dir string)
		want  string
	}{
		{"bit flip", file(flip(300_001)), "memory is damaged"},
		{"bit flip in a hole", file(flip(700_000)), "memory is damaged"},
		{"shorter", file(func(p string) error { return os.Truncate(p, testSize-1) }), "has 1048575 bytes"},
		{"longer", file(func(p string) error { return os.Truncate(p, testSize+1) }), "has 1048577 bytes"},
		{"gone", file(os.Remove), "no such file"},
		{"a link", file(func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p)) }), "symbolic link"},
		{"a directory", file(func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) }), "not a regular file"},
		{"a pipe", file(func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) }), "not a regular file"},
		{"data moved", file(func(p string) error {
			return errors.Join(os.Truncate(p, 0), os.Truncate(p, testSize), os.WriteFile(p+"3", nil, 0o600))
		}), "memory is damaged"},
		{"injected key", edit(func(m map[string]any) { m["command"] = "rm" }), `unknown field "command"`},
		{"another format", edit(func(m map[string]any) { m["format"] = 2 }), "format 2"},
		{"no files", edit(func(m map[string]any) { m["files"] = nil }), "names 0 files"},
		{"many files", edit(func(m map[string]any) { m["files"] = make([]File, maxFiles+1) }), "names 65 files"},
		{"a file elsewhere", edit(func(m map[string]any) { m["files"] = []File{{Name: "../memory"}} }), `"../memory"`},
		{"the manifest itself", edit(func(m map[string]any) { m["files"] = []File{{Name: manifestName}} }), manifestName},
		{"a long manifest", edit(func(m map[string]any) { m["cpu"] = strings.Repeat("x", maxManifest) }), "longer than"},
		{"no manifest", func(_ *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, manifestName)) }, "no such file"},
		{"no JSON", func(_ *testing.T, dir string) {
			_ = os.WriteFile(filepath.Join(dir, manifestName), []byte("nonsense"), 0o600)
		}, "manifest is damaged"},
		{"others may write", func(_ *testing.T, dir string) { _ = os.Chmod(dir, 0o777) }, "chmod go-w"},
	} {
		for _, checked := range []bool{false, true} {
			name := tt.name
			if checked {
				name += ", checked before"
			}
			t.Run(name, func(t *testing.T) {
				dir := save(t)
				if checked {
					if _, err := Open(t.Context(), dir); err != nil {
						t.Fatal(err)
					}
				}
				tt.spoil(t, dir)
				_, err := Open(t.Context(), dir)
				if !errors.Is(err, vm.ErrBadSnapshot) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want ErrBadSnapshot and %q", err, tt.want)
				}
			})
		}
	}
}

func TestMatch(t *testing.T) {
	for want, change := range map[string]func(m *Manifest){
		"driver": func(m *Manifest) { m.Driver = "x" }, "driver version": func(m *Manifest) { m.DriverVersion = "x" },
		"processor": func(m *Manifest) { m.CPU = "x" }, "guest kernel": func(m *Manifest) { m.Kernel = "x" },
		"image": func(m *Manifest) { m.Image = "x" }, "memory in MiB": func(m *Manifest) { m.MemoryMiB++ },
		"number of vCPUs": func(m *Manifest) { m.VCPUs++ }, "disk in MiB": func(m *Manifest) { m.DiskMiB = 0 },
	} {
		have, here := testManifest(), testManifest()
		change(&here)
		if err := have.Match(&here); !errors.Is(err, vm.ErrBadSnapshot) || !strings.Contains(err.Error(), "its "+want+" is") {
			t.Errorf("another %s: got %v", want, err)
		}
	}
}

func TestPrepare(t *testing.T) {
	full, open := privateDir(t), privateDir(t)
	sparse(t, filepath.Join(full, "file"), nil)
	if err := os.Chmod(open, 0o770); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(privateDir(t), link); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		full: "not empty", open: "others may write", link: "not a directory", "relative": "not absolute", "/no/such": "no such file",
	} {
		if err := Prepare(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", dir, err, want)
		}
	}
}

// A file that was found right is not read again until it changes.
func TestStamps(t *testing.T) {
	dir := save(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ended, dir); !errors.Is(err, context.Canceled) || errors.Is(err, vm.ErrBadSnapshot) {
		t.Errorf("Open with a context that has ended: got %v, want that", err)
	}
	if _, err := Open(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ended, dir); err != nil {
		t.Errorf("Open again reads the files: %v", err)
	}
	// It cannot be hidden by setting the time back.
	path := filepath.Join(dir, "memory")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	sparse(t, path, map[int64]string{0: "c"})
	if err := os.Chtimes(path, time.Time{}, info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir); !errors.Is(err, vm.ErrBadSnapshot) {
		t.Errorf("got %v, want ErrBadSnapshot", err)
	}
	// Bad stamps are none.
	good := save(t)
	for _, stamps := range []string{"nonsense", "[]", `[{"name":"memory"}]`} {
		if err := os.WriteFile(filepath.Join(good, stampName), []byte(stamps), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), good); err != nil {
			t.Errorf("with stamps %s: %v", stamps, err)
		}
	}
}

// A digest tells contents apart, and nothing else.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	sum := func(f *os.File) string {
		t.Helper()
		s, err := digest(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	data := map[int64]string{5: "x", 500_000: "y"}
	holes := sparse(t, filepath.Join(dir, "holes"), data)
	zeroes := sparse(t, filepath.Join(dir, "zeroes"), map[int64]string{0: strings.Repeat("\x00", testSize)})
	for at, s := range data {
		if _, err := zeroes.WriteAt([]byte(s), at); err != nil {
			t.Fatal(err)
		}
	}
	if a, b := sum(holes), sum(zeroes); a != b {
		t.Errorf("with holes %s, with zeroes %s", a, b)
	}
	seen := map[string]int{sum(holes): -1}
	for i, other := range []map[int64]string{
		nil, {5: "x"}, {6: "x", 500_000: "y"}, {5: "x", 500_001: "y"}, {5: "x", 500_000 + block: "y"}, {5: "y", 500_000: "x"},
	} {
		s := sum(sparse(t, filepath.Join(dir, "other"), other))
		if j, ok := seen[s]; ok {
			t.Errorf("%d has the digest of %d", i, j)
		}
		seen[s] = i
	}
	if err := holes.Truncate(testSize + 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := seen[sum(holes)]; ok {
		t.Error("a longer file has the same digest")
	}
}

func TestCopySparse(t *testing.T) {
	memory := func() *os.File {
		t.Helper()
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		f := os.NewFile(uintptr(fd), "memory")
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	disk := func() *os.File {
		t.Helper()
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	const size = 10 << 30
	want := map[int64]string{0: "a", 3*block - 1: "bb", 1 << 30: strings.Repeat("c", 3*plainChunk+5), size - 3: "end"}
	for _, tt := range []struct {
		name     string
		src, dst *os.File
	}{{"disk to disk", disk(), disk()}, {"memory to disk", memory(), disk()}, {"disk to memory", disk(), memory()}, {"memory to memory", memory(), memory()}} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.src.Truncate(size); err != nil {
				t.Fatal(err)
			}
			for at, s := range want {
				if _, err := tt.src.WriteAt([]byte(s), at); err != nil {
					t.Fatal(err)
				}
			}
			if err := CopySparse(t.Context(), tt.dst, tt.src); err != nil {
				t.Fatal(err)
			}
			for at, s := range want {
				got := make([]byte, len(s))
				if _, err := tt.dst.ReadAt(got, at); err != nil || !bytes.Equal(got, []byte(s)) {
					t.Errorf("at %d: got %.20q, %v", at, got, err)
				}
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(tt.dst.Fd()), &st); err != nil || st.Size != size || st.Blocks*512 > 8<<20 {
				t.Errorf("got %d bytes in %d blocks, %v", st.Size, st.Blocks, err)
			}
			a, err1 := digest(t.Context(), tt.src)
			b, err2 := digest(t.Context(), tt.dst)
			if err1 != nil || err2 != nil || a != b {
				t.Errorf("got digests %s, %v and %s, %v", a, err1, b, err2)
			}
			ended, cancel := context.WithCancelCause(t.Context())
			cancel(errors.New("enough"))
			if err := CopySparse(ended, tt.dst, tt.src); err == nil || !strings.Contains(err.Error(), "enough") {
				t.Errorf("after the context's end: got %v", err)
			}
		})
	}
}

func TestCPUName(t *testing.T) {
	const info = "processor\t: 0\nvendor_id\t: V\ncpu family\t: 6\nmodel\t\t: 85\nmodel name\t: N\nmicrocode\t: 0x1\ncpu MHz\t\t: 2600.000\nflags\t\t: fpu vme\n\nprocessor\t: 1\nvendor_id\t: W\n"
	a := cpuName(info)
	if !strings.HasPrefix(a, "V/6/85/N/features ") {
		t.Errorf("got %q", a)
	}
	if b := cpuName(strings.NewReplacer("2600", "3100", "fpu vme", "vme fpu").Replace(info)); b != a {
		t.Errorf("another clock: got %q, want %q", b, a)
	}
	if b := cpuName(strings.Replace(info, "vme", "vme avx", 1)); b == a {
		t.Error("another feature makes no difference")
	}
}

func TestImageDigest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	const abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got, err := ImageDigest(t.Context(), &vm.Config{Image: path}); got != abc || err != nil {
		t.Errorf("got %s, %v, want %s", got, err, abc)
	}
	if got, err := ImageDigest(t.Context(), &vm.Config{Image: "/no/such", ImageDigest: "known"}); got != "known" || err != nil {
		t.Errorf("got %s, %v, want what is known", got, err)
	}
}
