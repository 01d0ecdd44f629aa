package bootfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/kernel"
)

// It is made once, mended if it was changed, and kept while it is used (T31).
func TestInitramfs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "initramfs")
	path, err := Initramfs(dir, []byte("agent"), &kernel.Kernel{})
	if err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * keepFor)
	for _, name := range []string{filepath.Base(path), "old.cpio", tempPrefix + "1", "young.cpio"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("evil"), 0o600); err != nil {
			t.Fatal(err)
		}
		if name != "young.cpio" {
			if err := os.Chtimes(filepath.Join(dir, name), long, long); err != nil {
				t.Fatal(err)
			}
		}
	}
	again, err := Initramfs(dir, []byte("agent"), &kernel.Kernel{})
	if err != nil || again != path {
		t.Fatalf("got %s, %v, want %s", again, err, path)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != string(good) {
		t.Errorf("got %d bytes, %v, want it mended", len(got), err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("got %v, want it and the young one", entries)
	}
	if other, err := Initramfs(dir, []byte("another"), &kernel.Kernel{}); err != nil || other == path {
		t.Errorf("another agent: got %s, %v", other, err)
	}
	if _, err := Initramfs(dir, nil, &kernel.Kernel{}); err == nil {
		t.Error("an initramfs without an agent was made")
	}
}

// A module that is for other machines is left out, and is known by its kernel's name.
func TestWithout(t *testing.T) {
	store := t.TempDir()
	k := kernel.Kernel{Dir: store}
	for _, name := range []string{"a-b.ko", "c.ko"} {
		if err := os.WriteFile(filepath.Join(store, name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(name))
		k.Manifest.Modules = append(k.Manifest.Modules, kernel.Part{Name: name, Digest: "sha256:" + hex.EncodeToString(sum[:])})
	}
	for without, want := range map[string]bool{"a_b": false, "c": true} {
		path, err := Initramfs(t.TempDir(), []byte("agent"), &k, without)
		if err != nil {
			t.Fatal(err)
		}
		archive, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Contains(archive, []byte("000-a-b.ko")); got != want {
			t.Errorf("without %s: a-b.ko is there: %v, want %v", without, got, want)
		}
	}
	if !HasModule(&k, "a_b") || HasModule(&k, "vsock") {
		t.Error("HasModule does not know what is there")
	}
}
