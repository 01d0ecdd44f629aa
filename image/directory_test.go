package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func writeFile(t testing.TB, path, body string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestWriteDir(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	secret := writeFile(t, filepath.Join(outside, "secret"), "secret")
	writeFile(t, filepath.Join(dir, "b", "f"), "content")
	writeFile(t, filepath.Join(dir, "a"), "")
	at := time.Unix(1234567, 89)
	if err := errors.Join(
		os.Link(filepath.Join(dir, "b", "f"), filepath.Join(dir, "z")),
		// T22: links that lead outside are copied, never followed.
		os.Symlink(outside, filepath.Join(dir, "escape")),
		os.Symlink(secret, filepath.Join(dir, "secret")),
		os.Symlink("b", filepath.Join(dir, "inside")),
		unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600),
		os.Chmod(filepath.Join(dir, "a"), 0o755|fs.ModeSetuid),
		os.Chtimes(filepath.Join(dir, "a"), at, at),
	); err != nil {
		t.Fatal(err)
	}
	f := newOutput(t)
	stats, err := WriteDir(t.Context(), dir, f, Limits{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	equal(t, names(t, f), []string{
		"a", "b/", "b/f=content", "escape->" + outside, "fifo", "inside->b", "secret->" + secret, "z=content",
	})
	if st := statOf(t, f, "z"); st.Nlink != 2 || st.Ino != statOf(t, f, "b/f").Ino {
		t.Errorf("z has %d names, want the two of one inode", st.Nlink)
	}
	st := statOf(t, f, "a")
	if st.Mode&fs.ModeSetuid == 0 || int(st.UID) != os.Getuid() || !time.Unix(int64(st.Mtime), int64(st.MtimeNs)).Equal(at) {
		t.Errorf("a: %+v", st)
	}
	if stats.Names != 8 || stats.Inodes != 8 {
		t.Errorf("stats = %+v, want 8 names and 8 inodes", stats)
	}
	fsck(t, f.Name())
}

// The same directory gives the same image as often as it is imported.
func TestImportDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{"x/1", "x/2", "y/1", "0"} {
		writeFile(t, filepath.Join(dir, n), n)
	}
	s := newStore(t)
	first, err := s.Import(t.Context(), "a", dir, ImportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Import(t.Context(), "b", dir, ImportOptions{})
	if err != nil || second.Digest != first.Digest {
		t.Errorf("second import: %s, %v, want %s", second.Digest, err, first.Digest)
	}
	for _, path := range []string{filepath.Join(dir, "none"), "/dev/null"} {
		if _, err := s.Import(t.Context(), "c", path, ImportOptions{}); err == nil {
			t.Errorf("import of %s succeeded", path)
		}
	}
}

func TestWriteDirRefuses(t *testing.T) {
	tests := []struct {
		name   string
		limits Limits
		make   func(t *testing.T, dir string)
		want   string
	}{
		{name: "socket", want: "sock", make: func(t *testing.T, dir string) {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Close(fd) }()
			if err := unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(dir, "sock")}); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "device", want: "null", make: func(t *testing.T, dir string) {
			if err := unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR, 0x103); err != nil {
				t.Skipf("cannot make a device node (%v): run as root with `sudo go test ./image`", err)
			}
		}},
		{name: "large file", want: "big", limits: Limits{FileBytes: 10}, make: func(t *testing.T, dir string) {
			writeFile(t, filepath.Join(dir, "big"), "01234567890")
		}},
		{name: "too many entries", want: "entries", limits: Limits{Entries: 1}, make: func(t *testing.T, dir string) {
			writeFile(t, filepath.Join(dir, "d", "f"), "")
		}},
		{name: "too deep", want: "deep", make: func(t *testing.T, dir string) {
			if err := os.MkdirAll(dir+strings.Repeat("/d", maxDirDepth), 0o755); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.make(t, dir)
			_, err := WriteDir(t.Context(), dir, newOutput(t), tt.limits, nil)
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want a refusal naming %q", err, tt.want)
			}
		})
	}
}

// onRead calls a function when the image is first written to, which is after
// the directory has been looked at and while its files are being read.
type onWrite struct {
	Output
	f func()
}

func (o *onWrite) WriteAt(p []byte, off int64) (int, error) {
	if o.f != nil {
		o.f()
		o.f = nil
	}
	return o.Output.WriteAt(p, off)
}

// T22: what changes under our hands is reported, never followed.
func TestWriteDirRaces(t *testing.T) {
	body := strings.Repeat("x", 5<<20)
	races := map[string]func(t *testing.T, path string) error{
		"grows":     func(_ *testing.T, path string) error { return os.WriteFile(path, []byte(body+"more"), 0o644) },
		"shrinks":   func(_ *testing.T, path string) error { return os.Truncate(path, 10) },
		"rewritten": func(_ *testing.T, path string) error { return os.Chtimes(path, time.Now(), time.Unix(5, 0)) },
	}
	for name, race := range races {
		t.Run("T22 "+name, func(t *testing.T) {
			dir := t.TempDir()
			path := writeFile(t, filepath.Join(dir, "f"), body)
			out := &onWrite{newOutput(t), func() {
				if err := race(t, path); err != nil {
					t.Error(err)
				}
			}}
			if _, err := WriteDir(t.Context(), dir, out, Limits{}, nil); !errors.Is(err, errChanged) {
				t.Errorf("error = %v, want %v", err, errChanged)
			}
		})
	}
	for name, race := range map[string]func(path, outside string) error{
		"removed":          func(path, _ string) error { return os.RemoveAll(path) },
		"link to outside":  func(path, outside string) error { return errors.Join(os.RemoveAll(path), os.Symlink(outside, path)) },
		"fifo":             func(path, _ string) error { return errors.Join(os.RemoveAll(path), unix.Mkfifo(path, 0o600)) },
		"another's inside": func(path, _ string) error { return os.Rename(path+".other", path+".moved") },
	} {
		t.Run("T22 "+name, func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			secret := writeFile(t, filepath.Join(outside, "secret"), "secret")
			writeFile(t, filepath.Join(dir, "a"), body)
			path := writeFile(t, filepath.Join(dir, "b"), "b")
			writeFile(t, path+".other", "")
			f := newOutput(t)
			out := &onWrite{f, func() {
				if err := race(path, secret); err != nil {
					t.Error(err)
				}
			}}
			_, err := WriteDir(t.Context(), dir, out, Limits{}, nil)
			if err != nil {
				if !errors.Is(err, errChanged) {
					t.Errorf("error = %v, want %v", err, errChanged)
				}
				return
			}
			if got := names(t, f); slices.Contains(got, "b=secret") {
				t.Errorf("image holds what is outside: %v", got)
			}
		})
	}
}
