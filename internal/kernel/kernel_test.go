package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLZ4(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want string
		ok   bool
	}{
		{"literals", frame(literals([]byte("kernel"))), "kernel", true},
		{"long literals", frame(literals(bytes.Repeat([]byte("x"), 600))), strings.Repeat("x", 600), true},
		{"overlapping match", frame([]byte{0x2f, 'a', 'b', 2, 0, 1, 0x10, 'c'}), "ab" + strings.Repeat("ab", 10) + "c", true},
		{"what follows", append(frame(literals([]byte("k"))), 9, 0, 0, 0), "k", true},
		{"no magic", []byte{1, 2, 3, 4, 5}, "", false},
		{"offset of nothing", frame([]byte{0x10, 'a', 0, 0, 0x10, 'b'}), "", false},
		{"offset before the beginning", frame([]byte{0x10, 'a', 2, 0, 0x10, 'b'}), "", false},
		{"literals cut off", frame([]byte{0x50, 'a'}), "", false},
		{"length cut off", frame([]byte{0xf0, 255}), "", false},
		{"match at the end", frame([]byte{0x10, 'a', 1, 0}), "", false},
		{"bomb", frame(append([]byte{0x1f, 'a', 1, 0}, append(bytes.Repeat([]byte{255}, 1000), 0, 0)...)), "", false},
	} {
		out, err := lz4Legacy(tt.in, 4096)
		if (err == nil) != tt.ok || (tt.ok && string(out) != tt.want) {
			t.Errorf("%s: got %.40q, %v, want %.40q", tt.name, out, err, tt.want)
		}
	}
}

// What the usual tool compresses is what we read.
func TestLZ4Tool(t *testing.T) {
	lz4, err := exec.LookPath("lz4")
	if err != nil {
		t.Skip("lz4 is missing: run `apt-get install lz4`")
	}
	want, err := os.ReadFile("/proc/self/exe") // more than one block
	if err != nil {
		t.Fatal(err)
	}
	want = bytes.Repeat(want, 1+(9<<20)/len(want))
	cmd := exec.Command(lz4, "-l", "-c")
	cmd.Stdin = bytes.NewReader(want)
	in, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := lz4Legacy(in, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
	}
}

func FuzzUncompress(f *testing.F) {
	f.Add(bzImage(vmlinux()))
	f.Add(vmlinux())
	f.Fuzz(func(t *testing.T, data []byte) {
		if out, err := uncompress(t.Context(), data); err == nil && checkELF(out) != nil {
			t.Error("an image that cannot be started was accepted")
		}
	})
}

func TestUncompress(t *testing.T) {
	good := bzImage(vmlinux())
	for _, image := range [][]byte{good, vmlinux()} {
		if out, err := uncompress(t.Context(), image); err != nil || !bytes.Equal(out, vmlinux()) {
			t.Errorf("got %d bytes, %v, want %d", len(out), err, len(vmlinux()))
		}
	}
	short := slices.Clone(good)
	short[len(short)-4]++
	zstd := slices.Clone(good)
	zstd[2*sector+16] = 0x28
	for name, image := range map[string][]byte{
		"nothing": nil, "text": []byte(strings.Repeat("text", 500)), "cut off": good[:len(good)-9], "wrong length": short,
		"another compression": zstd, "no PVH": bzImage(elfFile(note("GNU", 3))), "no ELF": bzImage([]byte("not an ELF image")),
	} {
		if _, err := uncompress(t.Context(), image); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

func TestLoadOrder(t *testing.T) {
	modules := map[string][]byte{
		"ring": elfFile(nil, "depends="), "virtio": elfFile(nil, "depends=ring"), "blk": elfFile(nil, "depends=virtio,ring"),
		"fs": elfFile(nil, "softdep=pre: crc absent", "depends=nls-base,built"), "nls_base": elfFile(nil), "crc": elfFile(nil),
		"a": elfFile(nil, "depends=b"), "b": elfFile(nil, "depends=a"), "text": []byte("text"),
	}
	ordered, err := loadOrder([]string{"blk", "fs", "virtio"}, modules, map[string]bool{"built": true})
	var order []string
	for _, m := range ordered {
		order = append(order, m.name)
	}
	if want := []string{"ring", "virtio", "blk", "nls_base", "crc", "fs"}; err != nil || !slices.Equal(order, want) {
		t.Errorf("got %v, %v, want %v", order, err, want)
	}
	for _, bad := range []string{"a", "absent", "text"} {
		if _, err := loadOrder([]string{bad}, modules, nil); err == nil {
			t.Errorf("%s: got no error", bad)
		}
	}
}

// fakeApt puts an apt in the path that knows one package, with these files in it.
func fakeApt(t *testing.T, files map[string][]byte) {
	t.Helper()
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Skip("dpkg-deb is missing: run this on Debian, or `apt-get install dpkg`")
	}
	dir, tree := t.TempDir(), t.TempDir()
	files["/DEBIAN/control"] = []byte("Package: linux-image-6.1.0-test\nVersion: 6.1.1-1\nArchitecture: all\nMaintainer: nobody <n@example.org>\nDescription: test\n")
	for name, data := range files {
		write(t, filepath.Join(tree, name), data, 0o644)
	}
	if err := os.Chmod(filepath.Join(tree, "DEBIAN"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("dpkg-deb", "-Znone", "--build", tree, filepath.Join(dir, "test.deb")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	write(t, filepath.Join(dir, "apt-cache"), []byte("#!/bin/sh\necho 'Depends: linux-image-6.1.0-test (= 6.1.1-1)'\n"), 0o755)
	write(t, filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\ncp '"+dir+"/test.deb' .\n"), 0o755)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func write(t *testing.T, path string, data []byte, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
}

func testPackage() map[string][]byte {
	files := map[string][]byte{"/boot/vmlinuz-6.1.0-test": bzImage(vmlinux())}
	for _, name := range Modules {
		files["/lib/modules/6.1.0-test/kernel/"+name+".ko"] = elfFile(nil, "depends=virtio-ring")
	}
	files["/lib/modules/6.1.0-test/kernel/virtio-ring.ko"] = elfFile(nil)
	files["/lib/modules/6.1.0-test/modules.builtin"] = []byte("kernel/fs/ext4/ext4.ko\n")
	return files
}

func TestFetch(t *testing.T) {
	fakeApt(t, testPackage())
	s, err := Open(filepath.Join(t.TempDir(), "kernels"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Find(""); !errors.Is(err, ErrNone) {
		t.Errorf("empty store: got %v, want ErrNone", err)
	}
	var steps []string
	k, err := s.Fetch(t.Context(), FetchOptions{Progress: func(step string, _, _ int64) { steps = append(steps, step) }})
	if err != nil {
		t.Fatal(err)
	}
	if len(steps) < 3 || k.Manifest.Release != "6.1.0-test" || k.Manifest.Version != "6.1.1-1" || len(k.Manifest.Modules) != len(Modules)+1 {
		t.Errorf("got %+v after %q", k, steps)
	}
	if k.Manifest.Modules[0].Name != "modules/virtio_ring.ko" {
		t.Errorf("first module: got %s, want virtio_ring", k.Manifest.Modules[0].Name)
	}
	if err := k.Verify(); err != nil {
		t.Error(err)
	}
	again, err := s.Fetch(t.Context(), FetchOptions{})
	if err != nil || again.Digest != k.Digest {
		t.Errorf("again: got %s, %v, want %s", again.Digest, err, k.Digest)
	}
	for _, name := range []string{"", k.Digest, k.Digest[:19], "6.1.0-test"} {
		if found, err := s.Find(name); err != nil || found.Digest != k.Digest {
			t.Errorf("Find %q: got %s, %v", name, found.Digest, err)
		}
	}
	if _, err := s.Find("6.2"); !errors.Is(err, ErrNone) {
		t.Errorf("another: got %v, want ErrNone", err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) != 1 {
		t.Errorf("got %d directories, want 1: %v", len(entries), entries)
	}
	// A part that was changed is noticed, and replaced by the next fetch.
	module := filepath.Join(k.Dir, k.Manifest.Modules[0].Name)
	if err := os.Remove(module); err != nil {
		t.Fatal(err)
	}
	write(t, module, []byte("evil"), 0o644)
	if err := k.Verify(); err == nil {
		t.Error("a changed module was not noticed")
	}
	if k, err = s.Fetch(t.Context(), FetchOptions{}); err != nil || k.Verify() != nil {
		t.Errorf("repair: got %v, %v", err, k.Verify())
	}
	// So is a changed manifest.
	if err := os.Remove(filepath.Join(k.Dir, manifestName)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(k.Dir, manifestName), []byte(`{"format":1}`), 0o644)
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("got %v, %v, want none", all, err)
	}
}

func TestFetchFails(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	fails := func(name string, ctx context.Context, pkg string) {
		t.Helper()
		if k, err := s.Fetch(ctx, FetchOptions{Package: pkg}); err == nil {
			t.Errorf("%s: got %+v, want an error", name, k)
		}
		if entries, _ := os.ReadDir(s.dir); len(entries) != 0 {
			t.Errorf("%s: left %v", name, entries)
		}
	}
	for _, pkg := range []string{"bash", "-o=x", "linux-image-../x", "linux-image-x; true"} {
		fails(pkg, t.Context(), pkg)
	}
	files := testPackage()
	delete(files, "/boot/vmlinuz-6.1.0-test")
	fakeApt(t, files)
	fails("no image", t.Context(), "")
	files = testPackage()
	delete(files, "/lib/modules/6.1.0-test/kernel/erofs.ko")
	fakeApt(t, files)
	fails("no module", t.Context(), "")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	fails("ended context", ended, "")
	t.Setenv("PATH", t.TempDir())
	fails("no apt", t.Context(), "")
}
