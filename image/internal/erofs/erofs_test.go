package erofs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	reader "github.com/erofs/go-erofs"
)

// builder makes a tree by hand.
type builder struct {
	t *testing.T
	w *Writer
}

func (b builder) file(content []byte) *Inode {
	b.t.Helper()
	block, err := b.w.Append(b.t.Context(), bytes.NewReader(content), int64(len(content)))
	if err != nil {
		b.t.Fatal(err)
	}
	return &Inode{Mode: TypeRegular | 0o644, Size: int64(len(content)), Block: block}
}

func dir(entries map[string]*Inode) *Inode {
	n := &Inode{Mode: TypeDir | 0o755, Entries: make(map[string]Entry)}
	for name, e := range entries {
		n.Entries[name] = Entry{Inode: e}
	}
	return n
}

func link(target string) *Inode { return &Inode{Mode: TypeSymlink | 0o777, Target: target} }

func create(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(t.TempDir(), "image"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// fsck runs the format's own checker, where it is installed.
func fsck(t *testing.T, path string) {
	t.Helper()
	prog, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs is missing: run `apt-get install erofs-utils` to check the images with it too")
		return
	}
	if out, err := exec.CommandContext(t.Context(), prog, path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

// finish completes the image and returns it as another implementation reads it.
func finish(t *testing.T, w *Writer, f *os.File, root *Inode) (fs.FS, Stats) {
	t.Helper()
	stats, err := w.Finish(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil || info.Size() != stats.Size {
		t.Fatalf("image has %d bytes, %v, want the %d of Stats", info.Size(), err, stats.Size)
	}
	if err := Check(f, stats.Size); err != nil {
		t.Error(err)
	}
	fsck(t, f.Name())
	fsys, err := reader.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	return fsys, stats
}

func stat(t *testing.T, fsys fs.FS, name string) *reader.Stat {
	t.Helper()
	info, err := fsys.(fs.ReadLinkFS).Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	st, ok := info.Sys().(*reader.Stat)
	if !ok {
		t.Fatalf("%s: attributes are a %T", name, info.Sys())
	}
	return st
}

func TestRoundTrip(t *testing.T) {
	f := create(t)
	w := NewWriter(f)
	b := builder{t, w}
	contents := map[string][]byte{}
	entries := map[string]*Inode{}
	// Sizes around a block, the buffer and a hole.
	for _, size := range []int{0, 1, 63, 4031, 4032, 4095, 4096, 4097, 65536, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3 << 20} {
		name := fmt.Sprintf("f%d", size)
		contents[name] = bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		entries[name] = b.file(contents[name])
	}
	contents["zeros"] = make([]byte, 2<<20)
	entries["zeros"] = b.file(contents["zeros"])
	targets := map[string]string{}
	for _, size := range []int{1, 4000, 4032, 4033, MaxTarget} {
		name := fmt.Sprintf("l%d", size)
		targets[name] = strings.Repeat("x", size)
		entries[name] = link(targets[name])
	}
	entries[strings.Repeat("n", MaxName)] = entries["f1"]
	entries["\xff\xfe not UTF-8 \n"] = entries["f1"]
	entries["fifo"] = &Inode{Mode: TypeFIFO | 0o600}
	entries["setuid"] = &Inode{Mode: TypeRegular | 0o4755, UID: 1<<32 - 1, GID: 1<<32 - 2, MtimeSec: -5, MtimeNsec: 7}
	big := map[string]*Inode{}
	for i := range 3000 {
		big[fmt.Sprintf("entry-with-a-longer-name-%d", i)] = entries["f1"]
	}
	entries["big"] = dir(big)
	entries["empty"] = dir(nil)

	fsys, stats := finish(t, w, f, dir(entries))
	for name, want := range contents {
		got, err := fs.ReadFile(fsys, name)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v, want %d equal ones", name, len(got), err, len(want))
		}
		// B4: gVisor maps nothing but plain blocks.
		if st := stat(t, fsys, name); st.InodeLayout != layoutPlain {
			t.Errorf("%s: layout %d, want plain", name, st.InodeLayout)
		}
	}
	for name, want := range targets {
		if got, err := fsys.(fs.ReadLinkFS).ReadLink(name); err != nil || got != want {
			t.Errorf("%s: target of %d bytes, %v, want %d", name, len(got), err, len(want))
		}
	}
	list, err := fs.ReadDir(fsys, "big")
	if err != nil || len(list) != 3000 {
		t.Errorf("big directory has %d entries, %v, want 3000", len(list), err)
	}
	if st := stat(t, fsys, "f1"); st.Nlink != 3003 || st.Ino != stat(t, fsys, "big/entry-with-a-longer-name-7").Ino {
		t.Errorf("hard links: %d names, want 3003 of one inode", st.Nlink)
	}
	if st := stat(t, fsys, "setuid"); st.UID != 1<<32-1 || st.GID != 1<<32-2 || int64(st.Mtime) != -5 || st.MtimeNs != 7 || st.Mode&fs.ModeSetuid == 0 {
		t.Errorf("attributes = %+v", st)
	}
	if st := stat(t, fsys, "fifo"); st.Mode&fs.ModeNamedPipe == 0 {
		t.Errorf("fifo has mode %v", st.Mode)
	}
	if st := stat(t, fsys, "."); st.Nlink != 4 || st.Ino == 0 {
		t.Errorf("root has %d links and inode %d, want 4 and not 0", st.Nlink, st.Ino)
	}
	if want := int64(len(entries) + len(big) + 1 - 2 - 3000); stats.Inodes != want {
		t.Errorf("inodes = %d, want %d", stats.Inodes, want)
	}
	if want := int64(len(entries) + len(big)); stats.Names != want {
		t.Errorf("names = %d, want %d", stats.Names, want)
	}
}

// What the tree no longer refers to leaves no trace: the image is the one that
// would have been written without it.
func TestCompaction(t *testing.T) {
	var live []*Inode
	build := func(withDead bool) ([]byte, *os.File) {
		f := create(t)
		w := NewWriter(f)
		b := builder{t, w}
		live = nil
		for i := range 40 {
			if withDead && i%3 == 0 {
				b.file(bytes.Repeat([]byte("dead"), 50_000+i))
			}
			content := bytes.Repeat([]byte{byte('a' + i%26)}, 30_000*i+i)
			if i%5 == 0 {
				content = make([]byte, 200_000) // zeros, which are holes
			}
			live = append(live, b.file(content))
		}
		entries := map[string]*Inode{}
		for i, n := range live {
			entries[fmt.Sprint(i)] = n
		}
		finish(t, w, f, dir(entries))
		data, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return data, f
	}
	want, _ := build(false)
	if got, _ := build(true); !bytes.Equal(got, want) {
		t.Errorf("images with and without dead content differ: %d and %d bytes", len(got), len(want))
	}
}

func TestSparse(t *testing.T) {
	f := create(t)
	w := NewWriter(f)
	n := builder{t, w}.file(make([]byte, 64<<20))
	finish(t, w, f, dir(map[string]*Inode{"zeros": n}))
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if got := blocks(info) * 512; got > 1<<20 {
		t.Errorf("64 MiB of zeros take %d bytes on disk, want a hole", got)
	}
}

func TestRefusals(t *testing.T) {
	tests := map[string]*Inode{
		"root a file":  {Mode: TypeRegular},
		"long name":    dir(map[string]*Inode{strings.Repeat("n", MaxName+1): {Mode: TypeFIFO}}),
		"empty name":   dir(map[string]*Inode{"": {Mode: TypeFIFO}}),
		"long target":  dir(map[string]*Inode{"l": link(strings.Repeat("x", MaxTarget+1))}),
		"unknown type": dir(map[string]*Inode{"s": {Mode: 0o140000}}),
	}
	for name, root := range tests {
		t.Run(name, func(t *testing.T) {
			w := NewWriter(create(t))
			if _, err := w.Finish(t.Context(), root); err == nil {
				t.Error("Finish succeeded, want a refusal")
			}
		})
	}
	t.Run("short content", func(t *testing.T) {
		w := NewWriter(create(t))
		if _, err := w.Append(t.Context(), strings.NewReader("abc"), 4); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("error = %v, want %v", err, io.ErrUnexpectedEOF)
		}
		if _, err := w.Finish(t.Context(), dir(nil)); err == nil {
			t.Error("Finish succeeded after a failed Append")
		}
	})
	t.Run("too large", func(t *testing.T) {
		w := NewWriter(create(t))
		if _, err := w.Append(t.Context(), strings.NewReader(""), 1<<45); err == nil {
			t.Error("Append of 32 TiB succeeded")
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w := NewWriter(create(t))
		if _, err := w.Append(ctx, strings.NewReader("abc"), 3); !errors.Is(err, context.Canceled) {
			t.Errorf("error = %v, want %v", err, context.Canceled)
		}
	})
}

func TestCheck(t *testing.T) {
	f := create(t)
	w := NewWriter(f)
	_, stats := finish(t, w, f, dir(map[string]*Inode{"f": builder{t, w}.file([]byte("x"))}))
	good, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func([]byte) []byte{
		"magic":      func(b []byte) []byte { b[superOffset] ^= 1; return b },
		"checksum":   func(b []byte) []byte { b[superOffset+50] ^= 1; return b },
		"block tail": func(b []byte) []byte { b[4000] ^= 1; return b },
		"truncated":  func(b []byte) []byte { return b[:len(b)-BlockSize] },
		"longer":     func(b []byte) []byte { return append(b, 0) },
		"tiny":       func(b []byte) []byte { return b[:1000] },
		"empty":      func([]byte) []byte { return nil },
	} {
		b := damage(bytes.Clone(good))
		if err := Check(bytes.NewReader(b), int64(len(b))); err == nil {
			t.Errorf("%s: Check succeeded, want an error", name)
		}
	}
	if err := Check(bytes.NewReader(good), stats.Size); err != nil {
		t.Errorf("undamaged: %v", err)
	}
}

// failing is a File that fails at its nth write.
type failing struct {
	File
	left int
}

var errFull = errors.New("disk is full")

func (f *failing) WriteAt(p []byte, off int64) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errFull
	}
	return f.File.WriteAt(p, off)
}

// Every write that fails is reported, whichever it is.
func TestWriteErrors(t *testing.T) {
	build := func(out File) error {
		w := NewWriter(out)
		var entries []*Inode
		for range 3 {
			data := bytes.Repeat([]byte("x"), 1<<20)
			block, err := w.Append(t.Context(), bytes.NewReader(data), int64(len(data)))
			if err != nil {
				return err
			}
			entries = append(entries, &Inode{Mode: TypeRegular, Size: int64(len(data)), Block: block})
		}
		_, err := w.Finish(t.Context(), dir(map[string]*Inode{"b": entries[1], "c": entries[2], "l": link(strings.Repeat("x", MaxTarget))}))
		return err
	}
	for n := 0; ; n++ {
		out := &failing{File: create(t), left: n}
		err := build(out)
		if err == nil {
			if n < 5 {
				t.Errorf("an image takes %d writes, want more: the test tests nothing", n)
			}
			return
		}
		if !errors.Is(err, errFull) {
			t.Errorf("write %d: error = %v, want %v", n, err, errFull)
		}
	}
}
