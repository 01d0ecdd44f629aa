package image

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"

	reader "github.com/erofs/go-erofs"

	"github.com/bouvet-run/bouvet/image/internal/erofs"
)

// Whatever the bytes, Flatten refuses them or writes an image that another
// implementation reads from end to end, within the limits, and always the same.
func FuzzFlatten(f *testing.F) {
	f.Add(archive(f, folder("d"), file("d/f", "x"), hardlink("h", "d/f"), symlink("l", "d"), file("l/g", "y")), archive(f, file("d/.wh.f", ""), file("n/.wh..wh..opq", "")))
	f.Add(archive(f, symlink("a", "b"), symlink("b", "a"), file("a/x", "")), archive(f))
	f.Add(archive(f, entry{tar.Header{Typeflag: tar.TypeReg, Name: "p", PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}, "p"}), []byte{})
	f.Add(archive(f, file(strings.Repeat("n/", 100)+"x", "deep")), archive(f, file("../x", "")))
	opts := FlattenOptions{Whiteouts: true, DropDevices: true, Limits: Limits{TotalBytes: 1 << 20, FileBytes: 1 << 19, Entries: 1000, NameBytes: 1 << 16}}
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		image := &memory{}
		stats, err := Flatten(t.Context(), []Layer{layerOf(lower), layerOf(upper)}, image, opts)
		if err != nil {
			if !errors.Is(err, ErrRefused) {
				t.Errorf("error = %v, want a refusal: nothing else can go wrong here", err)
			}
			return
		}
		if stats.Size != int64(len(image.b)) {
			t.Errorf("size = %d, want %d", stats.Size, len(image.b))
		}
		if err := erofs.Check(image, stats.Size); err != nil {
			t.Error(err)
		}
		fsys, err := reader.Open(image)
		if err != nil {
			t.Fatal(err)
		}
		var found int64
		err = fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			found++
			if d.Type().IsRegular() {
				_, err = fs.ReadFile(fsys, path)
			}
			return err
		})
		if err != nil {
			t.Errorf("cannot read the image back: %v", err)
		}
		if found != stats.Names+1 {
			t.Errorf("found %d names, want %d and the root", found, stats.Names)
		}
		again := &memory{}
		if _, err := Flatten(t.Context(), []Layer{layerOf(lower), layerOf(upper)}, again, opts); err != nil || string(again.b) != string(image.b) {
			t.Errorf("the same layers gave another image: %v", err)
		}
	})
}

// memory is an Output in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.b = append(m.b, make([]byte, max(0, int(off)+len(p)-len(m.b)))...)
	return copy(m.b[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) Truncate(size int64) error {
	m.b = append(m.b, make([]byte, max(0, int(size)-len(m.b)))...)[:size]
	return nil
}
