package image

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	reader "github.com/erofs/go-erofs"
)

// entry is one entry of a test's archive; its zero fields get good values.
type entry struct {
	tar.Header
	body string
}

func file(name, body string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, body}
}

func folder(name string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}}
}

func symlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}}
}

func hardlink(name, target string) entry {
	return entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target}}
}

// archive returns a tar archive of the entries.
func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := e.Header
		if h.Size == 0 {
			h.Size = int64(len(e.body))
		}
		if h.ModTime.IsZero() {
			h.ModTime = time.Unix(1000, 0)
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func layerOf(b []byte) Layer {
	return func(context.Context) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
}

func newOutput(t testing.TB) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "image.erofs"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func flattenTo(t testing.TB, opts FlattenOptions, archives ...[]byte) (*os.File, Stats, error) {
	t.Helper()
	layers := make([]Layer, len(archives))
	for i, a := range archives {
		layers[i] = layerOf(a)
	}
	f := newOutput(t)
	stats, err := Flatten(t.Context(), layers, f, opts)
	return f, stats, err
}

// list describes an image as another implementation reads it, one line for each
// path in order. A file's content is shown if it is short.
func list(t testing.TB, f *os.File) []string {
	t.Helper()
	fsys, err := reader.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	err = fs.WalkDir(fsys, ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := fsys.(fs.ReadLinkFS).Lstat(path)
		if err != nil {
			return err
		}
		st := info.Sys().(*reader.Stat)
		line := fmt.Sprintf("%s %v", path, st.Mode)
		switch {
		case st.Mode&fs.ModeSymlink != 0:
			target, err := fsys.(fs.ReadLinkFS).ReadLink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		case st.Mode.IsRegular():
			b, err := fs.ReadFile(fsys, path)
			if err != nil {
				return err
			}
			if len(b) > 40 {
				b = fmt.Appendf(nil, "%x", sha256.Sum256(b))
			}
			line += fmt.Sprintf(" %q links=%d", b, st.Nlink)
		}
		if st.UID != 0 || st.GID != 0 {
			line += fmt.Sprintf(" %d:%d", st.UID, st.GID)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines[1:] // without the root
}

// names returns the paths of an image and what is in its files: "a=content",
// "d/", "l->target".
func names(t testing.TB, f *os.File) []string {
	t.Helper()
	var out []string
	for _, line := range list(t, f) {
		path, rest, _ := strings.Cut(line, " ")
		switch rest[0] {
		case 'd':
			path += "/"
		case 'L':
			_, target, _ := strings.Cut(rest, " -> ")
			path += "->" + target
		case '-':
			_, body, _ := strings.Cut(rest, `"`)
			body, _, _ = strings.Cut(body, `"`)
			path += "=" + body
		}
		out = append(out, path)
	}
	return out
}

func statOf(t testing.TB, f *os.File, path string) *reader.Stat {
	t.Helper()
	fsys, err := reader.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	info, err := fsys.(fs.ReadLinkFS).Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*reader.Stat)
}

func fsck(t testing.TB, path string) {
	t.Helper()
	prog, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs is missing: run `apt-get install erofs-utils`")
	}
	if out, err := exec.CommandContext(context.Background(), prog, path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

func equal(t testing.TB, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got:\n\t%s\nwant:\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}
