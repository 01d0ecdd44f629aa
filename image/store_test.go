package image

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func newStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "images"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// importBody imports an archive of one file and returns what the store says.
func importBody(t testing.TB, s *Store, name, body string) Info {
	t.Helper()
	info, err := s.ImportTar(t.Context(), name, bytes.NewReader(archive(t, file("f", body))), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// files returns the names of all files in the store but its lock.
func files(t testing.TB, s *Store) []string {
	t.Helper()
	var out []string
	for _, d := range []string{"blobs", "refs", "tmp"} {
		entries, err := os.ReadDir(s.path(d))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			out = append(out, d+"/"+e.Name())
		}
	}
	return out
}

func TestStore(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	a := importBody(t, s, "a", "one")
	if a.Name != "a" || a.Size == 0 || a.Inodes != 2 || a.Names != 1 || !digestPattern.MatchString(a.Digest) {
		t.Errorf("Import = %+v", a)
	}
	again := importBody(t, s, "b:v1", "one")
	if again.Digest != a.Digest {
		t.Errorf("the same input has digests %s and %s", a.Digest, again.Digest)
	}
	other := importBody(t, s, "c", "two")

	list, err := s.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, i := range list {
		got = append(got, i.Name+" "+i.Digest)
	}
	equal(t, got, []string{"a " + a.Digest, "b:v1 " + a.Digest, "c " + other.Digest})

	for _, name := range []string{"a", a.Digest, a.Digest[:20], strings.TrimPrefix(a.Digest, "sha256:")[:6]} {
		if got, err := s.Inspect(ctx, name); err != nil || got.Digest != a.Digest || got.Name != "a" || got.Path != a.Path {
			t.Errorf("Inspect(%s) = %+v, %v, want a", name, got, err)
		}
	}
	for _, name := range []string{"none", "000000000000", "sha256:000000000000"} {
		if _, err := s.Inspect(ctx, name); !errors.Is(err, ErrNotFound) {
			t.Errorf("Inspect(%s): %v, want %v", name, err, ErrNotFound)
		}
	}
	info, err := os.Stat(a.Path)
	if err != nil || info.Mode() != 0o444 || info.Size() != a.Size {
		t.Errorf("image file: %v, %v, want a read-only one", info, err)
	}

	// One name goes, then the last, and with it the file.
	if err := s.Remove(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(ctx, "a"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Acquire of a removed name: %v, want %v", err, ErrNotFound)
	}
	h, err := s.Acquire(ctx, "b:v1")
	if err != nil || h.Path() != a.Path || h.Digest() != a.Digest {
		t.Fatalf("Acquire = %v, %v", h, err)
	}
	if err := s.Remove(ctx, "b:v1"); !errors.Is(err, ErrInUse) {
		t.Errorf("Remove of an image in use: %v, want %v", err, ErrInUse)
	}
	for range 2 {
		if err := h.Release(); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if err := s.Remove(ctx, "b:v1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "b:v1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("second Remove: %v, want %v", err, ErrNotFound)
	}
	hex := strings.TrimPrefix(other.Digest, "sha256:")
	equal(t, files(t, s), []string{"blobs/sha256-" + hex + ".erofs", "blobs/sha256-" + hex + ".json", "refs/c.json"})
}

func TestStoreReplacesName(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	first := importBody(t, s, "a", "one")
	h, err := s.Acquire(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	second := importBody(t, s, "a", "two")
	if got, err := s.Inspect(ctx, "a"); err != nil || got.Digest != second.Digest {
		t.Errorf("Inspect = %s, %v, want the second image", got.Digest, err)
	}
	// The first is in use: it stays, and goes when it no longer is.
	if removed, err := s.Clean(ctx); err != nil || len(removed) != 0 {
		t.Errorf("Clean = %v, %v, want nothing removed", removed, err)
	}
	if _, err := os.Stat(first.Path); err != nil {
		t.Error(err)
	}
	if err := h.Release(); err != nil {
		t.Fatal(err)
	}
	if removed, err := s.Clean(ctx); err != nil || !slices.Equal(removed, []string{first.Digest}) {
		t.Errorf("Clean = %v, %v, want %s", removed, err, first.Digest)
	}
	// Not in use, it goes at once.
	third := importBody(t, s, "a", "three")
	if got := files(t, s); len(got) != 3 || !strings.Contains(got[0], strings.TrimPrefix(third.Digest, "sha256:")) {
		t.Errorf("files = %v, want those of the third image alone", got)
	}
}

func TestValidName(t *testing.T) {
	for _, name := range []string{"a", "default", "python:3.12-slim", "0.x_y-z", strings.Repeat("a", 128), "a:" + strings.Repeat("T", 64)} {
		if err := ValidName(name); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"", ".", "..", "-a", "A", "a/b", "../a", "a:", "a:b:c", "a b", "a\x00", "a\n", strings.Repeat("a", 129), "a:" + strings.Repeat("T", 65), "a:../b"} {
		if err := ValidName(name); err == nil {
			t.Errorf("%q is a valid name, want it refused", name)
		}
		s := newStore(t)
		if _, err := s.ImportTar(t.Context(), name, strings.NewReader(""), ImportOptions{}); err == nil {
			t.Errorf("import as %q succeeded", name)
		}
		if err := s.Remove(t.Context(), name); err == nil {
			t.Errorf("removal of %q succeeded", name)
		}
	}
}

func TestCompression(t *testing.T) {
	plain := archive(t, file("f", strings.Repeat("content ", 10000)))
	var gz, zst bytes.Buffer
	g := gzip.NewWriter(&gz)
	z, err := zstd.NewWriter(&zst)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []io.WriteCloser{g, z} {
		if _, err := w.Write(plain); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := newStore(t)
	want, err := s.ImportTar(t.Context(), "plain", bytes.NewReader(plain), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zst.Bytes()} {
		path := filepath.Join(t.TempDir(), "archive")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := s.Import(t.Context(), name, path, ImportOptions{})
		if err != nil || got.Digest != want.Digest || got.Source != path {
			t.Errorf("%s: %+v, %v, want the image of the plain archive", name, got, err)
		}
		if _, err := s.ImportTar(t.Context(), "cut", bytes.NewReader(b[:len(b)-3]), ImportOptions{}); err == nil {
			t.Errorf("%s without its last bytes: accepted, want an error", name)
		}
		flipped := bytes.Clone(b)
		flipped[len(b)-5] ^= 4 // the sum at the end
		if _, err := s.ImportTar(t.Context(), "flipped", bytes.NewReader(flipped), ImportOptions{}); err == nil {
			t.Errorf("%s with a wrong sum: accepted, want an error", name)
		}
	}
	for name, head := range map[string]string{"xz": "\xfd7zXZ\x00rest", "bzip2": "BZh91AY"} {
		if _, err := s.ImportTar(t.Context(), "x", strings.NewReader(head), ImportOptions{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "gzip or zstd") {
			t.Errorf("%s: %v, want a refusal with the remedy", name, err)
		}
	}
	if got := len(files(t, s)); got != 2+3 {
		t.Errorf("store has %v, want one image and three names", files(t, s))
	}
}

// T39: whoever imports, acquires and removes at once, each sees a whole image
// or none.
func TestStoreConcurrent(t *testing.T) {
	s := newStore(t)
	ctx := t.Context()
	data := archive(t, file("f", strings.Repeat("x", 100_000)))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			other, err := Open(s.Dir()) // as another process would
			if err != nil {
				t.Error(err)
				return
			}
			for range 10 {
				if _, err := other.ImportTar(ctx, "same", bytes.NewReader(data), ImportOptions{}); err != nil {
					t.Errorf("import: %v", err)
				}
				h, err := other.Acquire(ctx, "same")
				if err == nil {
					if _, err := os.Stat(h.Path()); err != nil {
						t.Errorf("held image: %v", err)
					}
					err = h.Release()
				}
				if err != nil && !errors.Is(err, ErrNotFound) {
					t.Errorf("acquire: %v", err)
				}
				if i%2 == 0 {
					if err := other.Remove(ctx, "same"); err != nil && !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInUse) {
						t.Errorf("remove: %v", err)
					}
				}
			}
		})
	}
	wg.Wait()
	info, err := s.ImportTar(ctx, "same", bytes.NewReader(data), ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	hex := strings.TrimPrefix(info.Digest, "sha256:")
	equal(t, files(t, s), []string{"blobs/sha256-" + hex + ".erofs", "blobs/sha256-" + hex + ".json", "refs/same.json"})
}

func TestImportCancelled(t *testing.T) {
	s := newStore(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	r := io.MultiReader(bytes.NewReader(archive(t, file("f", strings.Repeat("x", 1<<20)))[:1<<19]), readerFunc(func([]byte) (int, error) {
		cancel(why)
		return 0, nil
	}))
	if _, err := s.ImportTar(ctx, "a", r, ImportOptions{}); !errors.Is(err, why) {
		t.Errorf("error = %v, want %v", err, why)
	}
	equal(t, files(t, s), nil)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// T34: a record that cannot be read is shown, blocks what it might forbid, and
// can be removed or replaced.
func TestDamagedRecord(t *testing.T) {
	for name, record := range map[string]string{"garbage": "\x00\xff", "empty": "", "no digest": `{"name":"a"}`, "traversal": `{"digest":"sha256:../../../etc/passwd"}`} {
		t.Run("T34 "+name, func(t *testing.T) {
			s := newStore(t)
			ctx := t.Context()
			good := importBody(t, s, "good", "x")
			if err := os.WriteFile(s.refPath("bad"), []byte(record), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := s.List(ctx)
			if err != nil || len(list) != 2 || list[0].Problem == "" || list[1].Problem != "" {
				t.Errorf("List = %+v, %v, want a problem with bad alone", list, err)
			}
			if _, err := s.Acquire(ctx, "bad"); err == nil {
				t.Error("Acquire(bad) succeeded")
			}
			if err := s.Remove(ctx, "good"); err == nil || !strings.Contains(err.Error(), "bad") {
				t.Errorf("Remove(good) = %v, want it to wait for bad: that may name the same image", err)
			}
			if err := s.Remove(ctx, "bad"); err != nil {
				t.Errorf("Remove(bad) = %v", err)
			}
			if err := s.Remove(ctx, "good"); err != nil {
				t.Errorf("Remove(good) = %v", err)
			}
			if _, err := os.Stat(good.Path); err == nil {
				t.Error("the image is still there")
			}
		})
	}
}

func TestOpenRelative(t *testing.T) {
	if _, err := Open("images"); err == nil {
		t.Error("Open of a relative path succeeded")
	}
}

func ExampleStore() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "images")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	s, err := Open(dir)
	if err != nil {
		panic(err)
	}
	root := filepath.Join(dir, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		panic(err)
	}
	if _, err := s.Import(ctx, "empty", root, ImportOptions{}); err != nil {
		panic(err)
	}
	h, err := s.Acquire(ctx, "empty")
	if err != nil {
		panic(err)
	}
	defer func() { _ = h.Release() }()
	fmt.Println(h.Info().Inodes, "inode")
	fmt.Println(s.Remove(ctx, "empty"))
	// Output:
	// 1 inode
	// cannot remove image empty: image is in use: a sandbox or another process holds it; end that first
}
