package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
)

// program returns the smallest ELF file that passes for a program: a header and
// one program header of the given type.
func program(t *testing.T, segment elf.ProgType) []byte {
	t.Helper()
	var b bytes.Buffer
	h := elf.Header64{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: 1}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	for _, v := range []any{h, elf.Prog64{Type: uint32(segment)}} {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

func write(t *testing.T, path string, b []byte) string {
	t.Helper()
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestResolve(t *testing.T) {
	static, dynamic := program(t, elf.PT_LOAD), program(t, elf.PT_INTERP)
	dir := t.TempDir()
	good := write(t, filepath.Join(dir, "good"), static)
	linked := write(t, filepath.Join(dir, "linked"), dynamic)
	text := write(t, filepath.Join(dir, "text"), []byte("#!/bin/sh\n"))
	beside := filepath.Join(t.TempDir(), "bouvet")
	write(t, filepath.Join(filepath.Dir(beside), "bouvet-agent"), static)

	tests := []struct {
		name       string
		r          resolver
		wantSource string
		wantPath   string
		wantErr    string
	}{
		{name: "embedded first", r: resolver{embedded: static, env: linked, exe: good, main: command}, wantSource: SourceEmbedded},
		{name: "environment", r: resolver{env: good, exe: beside}, wantSource: SourceEnv, wantPath: good},
		{name: "environment relative", r: resolver{env: "good"}, wantErr: "absolute"},
		{name: "environment missing", r: resolver{env: filepath.Join(dir, "none")}, wantErr: "make build"},
		{name: "environment dynamic", r: resolver{env: linked}, wantErr: "dynamically linked"},
		{name: "environment not a program", r: resolver{env: text}, wantErr: "not an ELF"},
		{name: "environment a directory", r: resolver{env: dir}, wantErr: "regular file"},
		{name: "beside", r: resolver{exe: beside, main: command}, wantSource: SourceBeside, wantPath: filepath.Join(filepath.Dir(beside), "bouvet-agent")},
		{name: "self", r: resolver{exe: good, main: command}, wantSource: SourceSelf, wantPath: good},
		{name: "self dynamic", r: resolver{exe: linked, main: command}, wantErr: "CGO_ENABLED=0"},
		{name: "some other program", r: resolver{exe: good, main: "example.com/host"}, wantErr: "make build"},
		{name: "nothing", wantErr: "make build"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.r.resolve()
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error = %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Source != tt.wantSource || got.Path != tt.wantPath {
				t.Errorf("resolve = %s at %q, want %s at %q", got.Source, got.Path, tt.wantSource, tt.wantPath)
			}
			if !bytes.Equal(got.Binary, static) || len(got.Digest) != len("sha256:")+64 {
				t.Errorf("binary has %d bytes and digest %q, want %d bytes and a digest", len(got.Binary), got.Digest, len(static))
			}
		})
	}
}

func TestImage(t *testing.T) {
	agent := newAgent(append(program(t, elf.PT_LOAD), bytes.Repeat([]byte("agent"), 3000)...), "", SourceEmbedded)
	dir := t.TempDir()
	paths := make([]string, 8)
	var wg sync.WaitGroup
	for i := range paths {
		wg.Go(func() {
			var err error
			if paths[i], err = agent.Image(dir); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, p := range paths {
		if p != paths[0] || !filepath.IsAbs(p) {
			t.Errorf("path = %q, want the same absolute path for all, %q", p, paths[0])
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("directory holds %v, %v, want one image", entries, err)
	}
	checkImage(t, paths[0], agent.Binary)

	// A damaged image is replaced.
	for name, damage := range map[string]func(*os.File) error{
		"truncated": func(f *os.File) error { return f.Truncate(5000) },
		"flipped":   func(f *os.File) error { _, err := f.WriteAt([]byte{1}, 4500); return err },
	} {
		f, err := os.OpenFile(paths[0], os.O_RDWR, 0)
		if os.IsPermission(err) {
			if err := os.Chmod(paths[0], 0o600); err != nil {
				t.Fatal(err)
			}
			f, err = os.OpenFile(paths[0], os.O_RDWR, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(damage(f), f.Close()); err != nil {
			t.Fatal(err)
		}
		if got, err := agent.Image(dir); err != nil || got != paths[0] {
			t.Errorf("%s: Image = %q, %v, want %q", name, got, err, paths[0])
		}
		checkImage(t, paths[0], agent.Binary)
	}
}

func checkImage(t *testing.T, path string, want []byte) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	fsys, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	got, err := fs.ReadFile(fsys, "agent")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("agent in the image: %d bytes, %v, want %d", len(got), err, len(want))
	}
	info, err := fs.Stat(fsys, "agent")
	if err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("agent in the image: mode %v, %v, want 0555", info.Mode(), err)
	}
}

func TestPrune(t *testing.T) {
	dir := t.TempDir()
	agent := newAgent(program(t, elf.PT_LOAD), "", SourceEmbedded)
	long, recent := time.Now().Add(-2*keepFor), time.Now().Add(-2*touchAfter)
	for name, at := range map[string]time.Time{"agent-old.erofs": long, "agent-recent.erofs": recent, "temp-dead": long, "notes": long} {
		if err := os.Chtimes(write(t, filepath.Join(dir, name), nil), at, at); err != nil {
			t.Fatal(err)
		}
	}
	path, err := agent.Image(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"agent-old.erofs": false, "agent-recent.erofs": true, "temp-dead": false, "notes": true, filepath.Base(path): true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it kept: %v", name, err, want)
		}
	}
	// Asking for an image that was written long ago says that it is in use.
	if err := os.Chtimes(path, long, long); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Image(dir); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || time.Since(info.ModTime()) > touchAfter {
		t.Errorf("image was last used at %v, %v, want now", info.ModTime(), err)
	}
}

// The image passes the format's own checker.
func TestImageFsck(t *testing.T) {
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Skip("fsck.erofs is missing: run `apt-get install erofs-utils`")
	}
	path, err := newAgent(program(t, elf.PT_LOAD), "", SourceEmbedded).Image(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(context.Background(), fsck, path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}
