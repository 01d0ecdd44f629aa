package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{"import": importForever})
	os.Exit(m.Run())
}

// importForever is a program that imports what never ends into the store that is
// its working directory, and says when it has
// begun to write.
func importForever() int {
	dir, err := os.Getwd()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	s, err := Open(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	sent := 0
	head := archiveHead()
	endless := readerFunc(func(p []byte) (int, error) {
		if sent < len(head) {
			n := copy(p, head[sent:])
			sent += n
			return n, nil
		}
		if sent += len(p); sent > 8<<20 {
			fmt.Println("writing")
			_ = unix.Pause()
		}
		return len(p), nil
	})
	_, err = s.ImportTar(context.Background(), "never", endless, ImportOptions{})
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func archiveHead() []byte {
	var head []byte
	h := make([]byte, 512)
	copy(h, "f")
	copy(h[100:], "0000644\x000000000\x000000000\x0010000000000\x0000000000000\x00")
	copy(h[257:], "ustar\x0000")
	h[156] = '0'
	fixChecksum(h)
	return append(head, h...)
}

// An import that is killed leaves a temporary file alone, and the next one
// removes it; a living one's is left in peace.
func TestImportKilled(t *testing.T) {
	s := newStore(t)
	cmd := testutil.Reexec(t, "import")
	cmd.Dir = s.Dir()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 8)
	if _, err := io.ReadFull(out, buf); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := files(t, s); len(got) != 1 || !strings.HasPrefix(got[0], "tmp/image-") {
		t.Fatalf("files = %v, want what the living import writes", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	if got := files(t, s); len(got) != 1 {
		t.Fatalf("files = %v, want one: the test tests nothing", got)
	}
	importBody(t, s, "a", "x")
	for _, f := range files(t, s) {
		if strings.HasPrefix(f, "tmp/") {
			t.Errorf("%s is still there", f)
		}
	}
}

// A temporary directory goes with the process that made it.
func TestCleanTempDir(t *testing.T) {
	s := newStore(t)
	dir, release, err := s.newTempDir("kind")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("a living directory was removed: %v", err)
	}
	release()
	equal(t, files(t, s), nil)

	dead := s.path("tmp", "kind-DEAD")
	if err := errors.Join(os.WriteFile(dead, nil, 0o600), os.MkdirAll(dead+".d/x", 0o700), os.MkdirAll(dead+"ER.d/x", 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	equal(t, files(t, s), nil)
}

// damaged changes the file of an image in place, as a failing disk would.
func damaged(t *testing.T, path string, f func(*os.File) error) {
	t.Helper()
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f(file), file.Close(), os.Chmod(path, 0o444)); err != nil {
		t.Fatal(err)
	}
}

// T31: a damaged image is refused before anything runs on it, and a new import
// repairs it.
func TestCorruptImage(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, path string)
	}{
		{"truncated", func(t *testing.T, p string) { damaged(t, p, func(f *os.File) error { return f.Truncate(4096) }) }},
		{"empty", func(t *testing.T, p string) { damaged(t, p, func(f *os.File) error { return f.Truncate(0) }) }},
		{"longer", func(t *testing.T, p string) {
			damaged(t, p, func(f *os.File) error {
				_, err := f.Seek(0, io.SeekEnd)
				_, werr := f.Write([]byte{0})
				return errors.Join(err, werr)
			})
		}},
		{"superblock", func(t *testing.T, p string) {
			damaged(t, p, func(f *os.File) error { _, err := f.WriteAt([]byte{9}, 1024+60); return err })
		}},
		{"one bit", func(t *testing.T, p string) {
			damaged(t, p, func(f *os.File) error { _, err := f.WriteAt([]byte{'x' ^ 1}, 4096+50_000); return err })
		}},
		{"one bit, times put back", func(t *testing.T, p string) {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			damaged(t, p, func(f *os.File) error { _, err := f.WriteAt([]byte{'x' ^ 1}, 4096+50_000); return err })
			if err := os.Chtimes(p, info.ModTime(), info.ModTime()); err != nil {
				t.Fatal(err)
			}
		}},
		{"missing", func(t *testing.T, p string) {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
		}},
		{"another image", func(t *testing.T, p string) {
			o := newStore(t)
			if err := os.Rename(importBody(t, o, "o", strings.Repeat("y", 100_000)).Path, p); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run("T31 "+tt.name, func(t *testing.T) {
			s := newStore(t)
			body := strings.Repeat("x", 100_000)
			info := importBody(t, s, "a", body)
			tt.damage(t, info.Path)
			for range 2 {
				_, err := s.Acquire(t.Context(), "a")
				if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "import or build it again") {
					t.Errorf("Acquire: %v, want %v with a remedy", err, ErrCorrupt)
				}
				if err := s.Verify(t.Context(), "a"); !errors.Is(err, ErrCorrupt) {
					t.Errorf("Verify: %v, want %v", err, ErrCorrupt)
				}
			}
			if got := importBody(t, s, "a", body); got.Digest != info.Digest {
				t.Errorf("digest = %s, want %s again", got.Digest, info.Digest)
			}
			h, err := s.Acquire(t.Context(), "a")
			if err != nil {
				t.Fatalf("after the import: %v", err)
			}
			if err := errors.Join(h.Release(), s.Verify(t.Context(), "a")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A bit that flips on the disk changes no times: only Verify can find it.
func TestVerifyReadsAll(t *testing.T) {
	s := newStore(t)
	info := importBody(t, s, "a", strings.Repeat("x", 10_000))
	damaged(t, info.Path, func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 5000); return err })
	f, err := os.Open(info.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	st, err := stampOf(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.writeStamp(info.Digest, st); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), "a"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("Verify: %v, want %v", err, ErrCorrupt)
	}
}

// A copied store, or one whose records are lost, is read whole once.
func TestStampLost(t *testing.T) {
	s := newStore(t)
	info := importBody(t, s, "a", "x")
	for _, garbage := range []string{"", "{", `{"size":-1}`} {
		if err := os.WriteFile(s.stampPath(info.Digest), []byte(garbage), 0o600); err != nil {
			t.Fatal(err)
		}
		h, err := s.Acquire(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Release(); err != nil {
			t.Error(err)
		}
		var st stamp
		if err := readJSON(s.stampPath(info.Digest), &st); err != nil || st.Size != info.Size {
			t.Errorf("record = %+v, %v, want a new one", st, err)
		}
	}
}

// faulty fails at its nth write.
type faulty struct {
	Output
	left int
}

func (f *faulty) WriteAt(p []byte, off int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, &os.PathError{Op: "write", Path: "image", Err: syscall.ENOSPC}
	}
	return f.Output.WriteAt(p, off)
}

// T34: whichever write fails, the error says why and nothing is left.
func TestImportWriteFails(t *testing.T) {
	data := archive(t, file("f", strings.Repeat("x", 3<<20)), folder("d"))
	for n := 0; ; n++ {
		s := newStore(t)
		s.wrap = func(o Output) Output { return &faulty{o, n} }
		_, err := s.ImportTar(t.Context(), "a", bytes.NewReader(data), ImportOptions{})
		if err == nil {
			if n < 4 {
				t.Errorf("an import takes %d writes, want more: the test tests nothing", n)
			}
			return
		}
		if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room") {
			t.Errorf("write %d: %v, want no space left and the remedy", n, err)
		}
		equal(t, files(t, s), nil)
	}
}

// A real full disk.
func TestImportDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("cannot mount a small tmpfs (%v): run as root with `sudo go test ./image`", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(filepath.Join(dir, "images"))
	if err != nil {
		t.Fatal(err)
	}
	small := importBody(t, s, "small", "x")
	before := files(t, s)
	noise := make([]byte, 6<<20)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	_, err = s.ImportTar(t.Context(), "big", bytes.NewReader(archive(t, file("f", string(noise)))), ImportOptions{})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "make room") {
		t.Errorf("error = %v, want no space left and the remedy", err)
	}
	equal(t, files(t, s), before)
	if err := s.Verify(t.Context(), small.Name); err != nil {
		t.Error(err)
	}
}

// A lock that is held bounds nobody's wait but the context's.
func TestLockWait(t *testing.T) {
	s := newStore(t)
	importBody(t, s, "a", "x")
	unlock, err := s.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Remove(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Remove: %v, want %v", err, context.DeadlineExceeded)
	}
	unlock()
	if err := s.Remove(t.Context(), "a"); err != nil {
		t.Error(err)
	}
}
