package agent_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/agent"
)

type content struct {
	Content  string  `json:"content"`
	Encoding string  `json:"encoding"`
	Size     *uint64 `json:"size"`
}

func writeTemp(t testing.TB, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// D9.
func TestReadFileText(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	for name, text := range map[string]string{
		"empty": "", "text": "Hello, World!\n", "unicode": "héllo → 世界 \U0001F600", "controls": "\x00\x01\x1b\"\\\u2028</script>\r\n",
		"10 MiB":                  strings.Repeat("0123456789abcdef", 10<<20/16),
		"pieces end within runes": strings.Repeat("a世界", 100_000),
	} {
		got := must[content](c, "read_file", m{"path": writeTemp(t, "f", []byte(text))})
		if got.Content != text || got.Encoding != "" || got.Size != nil {
			t.Errorf("%s: got %d bytes, encoding %q, size %v", name, len(got.Content), got.Encoding, got.Size)
		}
	}
	// Files that claim no size.
	if got := must[content](c, "read_file", m{"path": "/proc/self/status"}); !strings.Contains(got.Content, "Pid:\t") {
		t.Errorf("/proc/self/status: got %.100q", got.Content)
	}
}

// T10: any bytes cross in base64, and parts of files of any size.
func TestReadFileParts(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	data := randomBytes(11 << 20)
	path := writeTemp(t, "f", data)
	for _, x := range []struct {
		offset, length, want int
	}{{0, 1, 1}, {1, 0, -1}, {1, 10, 10}, {5, 10 << 20, 10 << 20}, {1 << 20, 0, 10 << 20}, {11 << 20, 5, 0}, {11<<20 - 3, 5, 3}, {1 << 40, 5, 0}} {
		params := m{"path": path, "encoding": "base64", "offset": x.offset, "length": x.length}
		if x.want < 0 {
			params["offset"] = 0
			refuse(c, -32603, "too large", "read_file", m{"path": path, "encoding": "base64"})
			continue
		}
		got := must[content](c, "read_file", params)
		raw, err := base64.StdEncoding.DecodeString(got.Content)
		if err != nil || got.Encoding != "base64" || got.Size == nil || *got.Size != 11<<20 {
			t.Fatalf("%+v: encoding %q, size %v, %v", x, got.Encoding, got.Size, err)
		}
		if want := data[min(x.offset, len(data)):min(x.offset+x.want, len(data))]; !bytes.Equal(raw, want) {
			t.Errorf("%+v: got %d bytes, want %d, or they differ", x, len(raw), len(want))
		}
	}
	refuse(c, -32603, "longer than", "read_file", m{"path": path, "encoding": "base64", "offset": 5})
	refuse(c, -32602, "unknown encoding", "read_file", m{"path": path, "encoding": "hex"})
	refuse(c, -32602, "2^63", "read_file", m{"path": path, "offset": uint64(1 << 63)})
}

// Nothing that would wait, wake a device or have no end is opened.
func TestSpecialFilesAreRefused(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", "/dev/null", "/dev/tty", c.RemoteAddr().String()} {
		for _, method := range []string{"read_file", "download"} {
			refuse(c, -32603, "not a regular file", method, m{"path": path})
		}
		refuse(c, -32603, "not a regular file", "write_file", m{"path": path, "content": "x"})
		refuse(c, -32603, "not a regular file", "upload", m{"path": path})
		refuse(c, -32603, "not a directory", "list_dir", m{"path": path})
	}
}

// D10.
func TestWriteFile(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "f")
	mustWrite := func(p m) {
		t.Helper()
		if got := must[m](c, "write_file", p); got["success"] != true {
			t.Errorf("got %v", got)
		}
	}
	want := func(path, text string, mode os.FileMode) {
		t.Helper()
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != text || info.Mode() != mode {
			t.Errorf("%s holds %q with mode %v (%v, %v), want %q with %v", path, got, info.Mode(), err, statErr, text, mode)
		}
	}
	mustWrite(m{"path": path, "content": "first, and longer"})
	want(path, "first, and longer", 0o644)
	if info, err := os.Stat(filepath.Dir(path)); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("made directory: %v, %v", info.Mode(), err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Stat(path)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	mustWrite(m{"path": link, "content": "second"})
	want(path, "second", 0o640)
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("the file was replaced by another, want its content replaced")
	}
	mustWrite(m{"path": path, "content": "YUU=", "encoding": "base64", "mode": 0o4755})
	want(path, "aE", 0o755|os.ModeSetuid)
	mustWrite(m{"path": path, "content": "XYZ", "offset": 1, "mode": 0o755})
	want(path, "aXYZ", 0o755)
	mustWrite(m{"path": path, "content": "", "offset": 100})
	want(path, "aXYZ", 0o755)
	mustWrite(m{"path": path, "content": ""})
	want(path, "", 0o755)
	if os.Getuid() == 0 {
		owned := filepath.Join(dir, "o", "p", "f")
		mustWrite(m{"path": owned, "content": "x", "user": "12345:54321"})
		for p := owned; p != dir; p = filepath.Dir(p) {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if st := info.Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 54321 {
				t.Errorf("%s belongs to %d:%d", p, st.Uid, st.Gid)
			}
		}
	}
	none := filepath.Join(dir, "none")
	refuse(c, -32603, "no such file", "write_file", m{"path": none, "content": "x", "offset": 0})
	refuse(c, -32602, "not base64", "write_file", m{"path": none, "content": "x!", "encoding": "base64"})
	refuse(c, -32602, "unknown encoding", "write_file", m{"path": none, "content": "x", "encoding": "x"})
	refuse(c, -32602, "mode", "write_file", m{"path": none, "content": "x", "mode": 0o10000})
	refuse(c, -32602, "unknown user", "write_file", m{"path": none, "content": "x", "user": "no-such-user"})
	refuse(c, -32603, "file name too long", "write_file", m{"path": dir + "/" + strings.Repeat("x", 300), "content": "x"})
	if _, err := os.Lstat(none); err == nil {
		t.Error("a refused write made its file")
	}
}

// D11, D12.
func TestListDir(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	for _, err := range []error{
		os.WriteFile(dir+"/b.txt", []byte("12345"), 0o600), os.WriteFile(dir+"/.hidden", []byte("1"), 0o600),
		os.Mkdir(dir+"/a dir", 0o700), os.Symlink("b.txt", dir+"/link"), os.Symlink(".", dir+"/self"), os.Symlink("nowhere", dir+"/dangling"),
		unix.Mkfifo(dir+"/fifo", 0o600), os.WriteFile(dir+"/B", nil, 0o600), os.WriteFile(dir+"/new\nline", nil, 0o600),
		os.WriteFile(dir+"/bad\xff", nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	type entry struct {
		Name  string `json:"name"`
		IsDir bool   `json:"is_dir"`
		Size  int    `json:"size"`
	}
	type listing struct {
		Entries []entry `json:"entries"`
	}
	got := must[listing](c, "list_dir", m{"path": dir}).Entries
	want := []entry{
		{".hidden", false, 1},
		{"B", false, 0},
		{"a dir", true, 0},
		{"b.txt", false, 5},
		{"bad\ufffd", false, 0},
		{"dangling", false, 0},
		{"fifo", false, 0},
		{"link", false, 0},
		{"new\nline", false, 0},
		{"self", false, 0},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	r := c.call("list_dir", m{"path": t.TempDir()})
	if string(r.Result) != `{"entries":[]}` {
		t.Errorf("empty directory: %s", r.Result)
	}
}

func TestListDirIsCapped(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	const long = 200
	for i := range 6<<20/long + 1 {
		f, err := os.OpenFile(fmt.Sprintf("%s/%0*d", dir, long, i), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	}
	refuse(c, -32603, "more entries than one answer may hold", "list_dir", m{"path": dir})
}

func TestStat(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	path := writeTemp(t, "f", []byte("123"))
	when := time.Unix(1_600_000_000, 123456789)
	if err := os.Chtimes(path, when, when); err != nil {
		t.Fatal(err)
	}
	link := path + ".link"
	if err := os.Symlink("f", link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o751|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	uid, gid := float64(os.Getuid()), float64(os.Getgid())
	for _, x := range []struct {
		path string
		want m
	}{
		{path, m{"name": "f", "path": path, "type": "file", "size": 3.0, "mode": 0o2751 * 1.0, "uid": uid, "gid": gid, "mtime_ns": 1600000000123456789.0}},
		{filepath.Dir(path) + "/./f", m{"name": "f", "path": path, "type": "file"}},
		{link, m{"name": "f.link", "type": "symlink", "target": "f", "size": 0.0}},
		{"/", m{"name": "/", "path": "/", "type": "dir", "user": "root", "group": "root"}},
		{"/dev/null", m{"type": "other", "mode": 0o666 * 1.0}},
	} {
		got := must[m](c, "stat", m{"path": x.path})
		for key, want := range x.want {
			if got[key] != want {
				t.Errorf("stat %s: %s is %v, want %v", x.path, key, got[key], want)
			}
		}
	}
}

func TestMakeDir(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	path := dir + "/x/y/z"
	if got := must[m](c, "make_dir", m{"path": path, "mode": 0o1770}); got["created"] != true {
		t.Errorf("got %v", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o770 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if got := must[m](c, "make_dir", m{"path": path + "/", "mode": 0o700}); got["created"] != false {
		t.Errorf("again: got %v", got)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o770 {
		t.Error("the mode of a directory that was there was changed")
	}
	if err := os.Symlink(path, dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if got := must[m](c, "make_dir", m{"path": dir + "/link/sub"}); got["created"] != true {
		t.Errorf("through a link: got %v", got)
	}
	if err := os.Symlink("nowhere", dir+"/dangling"); err != nil {
		t.Fatal(err)
	}
	refuse(c, -32603, "file exists", "make_dir", m{"path": dir + "/dangling"})
}

func TestMove(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	from := writeTemp(t, "f", []byte("moved"))
	to := dir + "/new/dir/g"
	must[struct{}](c, "move", m{"from": from, "to": to})
	must[struct{}](c, "move", m{"from": filepath.Dir(to), "to": dir + "/d"})
	if got, err := os.ReadFile(dir + "/d/g"); string(got) != "moved" {
		t.Errorf("got %q, %v", got, err)
	}
	refuse(c, -32602, `"to"`, "move", m{"from": "x"})
	refuse(c, -32602, `"from"`, "move", m{"to": "x"})

	other := "/dev/shm"
	var a, b unix.Statfs_t
	if unix.Statfs(other, &a) != nil || unix.Statfs(dir, &b) != nil || a.Fsid == b.Fsid {
		t.Skip("there is no second file system at /dev/shm: `mount -t tmpfs tmpfs /dev/shm`")
	}
	other, err := os.MkdirTemp(other, "bouvet-test") //nolint:usetesting // on that file system.
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(other) }()
	if err := os.Chmod(dir+"/d/g", 0o751); err != nil {
		t.Fatal(err)
	}
	must[struct{}](c, "move", m{"from": dir + "/d/g", "to": other + "/sub/h"})
	info, err := os.Stat(other + "/sub/h")
	if err != nil || info.Mode() != 0o751 || info.Size() != 5 {
		t.Errorf("across file systems: %v, %v", info, err)
	}
	if _, err := os.Stat(dir + "/d/g"); err == nil {
		t.Error("the original is still there")
	}
	refuse(c, -32603, "only regular files", "move", m{"from": other + "/sub", "to": dir + "/sub"})
}

func TestRemove(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir, outside := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.MkdirAll(dir+"/a/b/c", 0o700), os.WriteFile(dir+"/a/b/f", nil, 0o400), os.WriteFile(outside+"/keep", nil, 0o600),
		os.Symlink(outside, dir+"/a/link"), os.Symlink("/", dir+"/a/root"), os.Symlink(outside, dir+"/top"), os.Symlink("/", dir+"/slash"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/a", "/top", "/slash/"} {
		must[struct{}](c, "remove", m{"path": dir + path})
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	if _, err := os.Stat(outside + "/keep"); err != nil {
		t.Error("what a link led to was removed:", err)
	}
}

// This asks only whether: a test suite that removes the root when it fails is none.
func TestTheRootIsNotRemovable(t *testing.T) {
	for _, path := range []string{"/", "//", "/.", "/..", "/tmp/.."} {
		if got, err := agent.Removable(path); err == nil {
			t.Errorf("%s: %s may be removed", path, got)
		}
	}
	link := t.TempDir() + "/link"
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	if got, err := agent.Removable(link + "/"); err != nil || got != link {
		t.Errorf("a link to the root: got %s, %v, want the link itself", got, err)
	}
}
