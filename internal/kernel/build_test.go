package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

// fakeSource puts an apt with a source package into the path, and tools that make a
// kernel of it: make is told by the script what to do for the goal vmlinux.
func fakeSource(t *testing.T, script string) (bin string) {
	t.Helper()
	for _, name := range []string{"dpkg-deb", "tar", "xz"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("%s is missing: run this on Debian, or `apt-get install dpkg tar xz-utils`", name)
		}
	}
	tree := t.TempDir()
	write(t, filepath.Join(tree, "linux-source-6.1", "Kconfig"), []byte("# fake\n"), 0o644)
	write(t, filepath.Join(tree, "linux-source-6.1", "made"), vmlinuxOf("6.1.9-bouvet"), 0o644)
	write(t, filepath.Join(tree, "linux-source-6.1", "arch", "arm64", "huge.c"), nil, 0o644)
	write(t, filepath.Join(tree, "linux-source-6.1", "arch", "arm64", "Kconfig"), nil, 0o644)
	archive := filepath.Join(t.TempDir(), "usr", "src", "linux-source-6.1.tar.xz")
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "-C", tree, "-cJf", archive, "linux-source-6.1").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	fakeApt(t, map[string][]byte{"/usr/src/linux-source-6.1.tar.xz": data})
	bin = t.TempDir()
	write(t, filepath.Join(bin, "make"), []byte(`#!/bin/sh
case "$*" in
*allnoconfig) [ -e arch/arm64/Kconfig ] && [ ! -e arch/arm64/huge.c ] && [ "$MAKEFLAGS" = "" ] && grep -v "${LOSE:-nothing}" "$KCONFIG_ALLCONFIG" > .config ;;
*vmlinux)
`+script+`
;;
*) exit 9 ;;
esac
`), 0o755)
	for _, name := range []string{"gcc", "ld", "flex", "bison", "bc", "perl"} {
		write(t, filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755)
	}
	write(t, filepath.Join(bin, "strip"), []byte("#!/bin/sh\ncp \"$4\" \"$3\"\n"), 0o755)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	t.Setenv("MAKEFLAGS", "--evil")
	return bin
}

// vmlinuxOf is an image that can be started, of a release.
func vmlinuxOf(release string) []byte {
	return elfFile(note("Xen", pvhNote), "Linux version "+release+" (bouvet@bouvet) (gcc)")
}

const goodMake = `echo "  CC a.o"; echo "  CC b.o"; cp made vmlinux`

func openStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "kernels"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantOnly fails if there is more in the store than these.
func wantOnly(t *testing.T, s *Store, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(names) {
		t.Errorf("in the store: got %v, want %v", entries, names)
	}
}

func TestBuild(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	fakeSource(t, goodMake)
	s := openStore(t)
	var steps []string
	progress := func(step string, done, total int64) { steps = append(steps, fmt.Sprint(step, done, total)) }
	k, err := s.Build(t.Context(), BuildOptions{Jobs: 3, Progress: progress, Fragment: []byte("CONFIG_BTRFS_FS=y\nCONFIG_HZ_250=y\n# CONFIG_NF_TABLES is not set\n")})
	if err != nil {
		t.Fatal(err)
	}
	m := &k.Manifest
	if m.Release != "6.1.9-bouvet" || m.Package != SourcePackage || m.Version != "6.1.1-1" || len(m.Modules) > 0 || m.Config == nil {
		t.Errorf("got %+v", m)
	}
	if !m.Has(MMIOCmdline) || m.Has(NFTables) {
		t.Errorf("features: got %v, want them to follow the configuration", m.Features)
	}
	if err := k.Verify(); err != nil {
		t.Error(err)
	}
	dotConfig, err := k.Read(*m.Config)
	if err != nil || !strings.Contains(string(dotConfig), "CONFIG_BTRFS_FS=y\n") {
		t.Errorf("configuration: got %v, want what was asked for", err)
	}
	if all := strings.Join(steps, ","); !strings.Contains(all, "downloading linux-source-6.1") || !strings.Contains(all, "compiling2 2150") {
		t.Errorf("steps: got %q", steps)
	}
	log, err := os.ReadFile(s.BuildLog())
	if err != nil || !strings.Contains(string(log), "CC b.o") {
		t.Errorf("log: got %q, %v", log, err)
	}
	wantOnly(t, s, buildLog, k.Digest)
}

func TestBuildFails(t *testing.T) {
	for _, tt := range []struct {
		name, script, lose, fragment, want string
	}{
		{"compiler", `echo "x.c:1: error: no such thing"; echo "make: *** [x.o] Error 1"; exit 2`, "", "", "error: no such thing; make: ***"},
		{"no kernel", `true`, "", "", "strip"},
		{"no ELF image", `echo text > vmlinux`, "", "", "cannot read kernel"},
		{"lost symbols", goodMake, "EROFS", "", "CONFIG_EROFS_FS=y is n, CONFIG_EROFS_FS_POSIX_ACL=y is n"},
		{"modules", goodMake, "", "CONFIG_MODULES=y", "CONFIG_MODULES"},
		{"needs", goodMake, "", "CONFIG_OVERLAY_FS=n", "needs more: CONFIG_OVERLAY_FS is n"},
		{"no fragment", goodMake, "", "evil", "line 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			bin := fakeSource(t, tt.script)
			if tt.lose != "" {
				text, err := os.ReadFile(filepath.Join(bin, "make"))
				if err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(bin, "make"), []byte(strings.Replace(string(text), "${LOSE:-nothing}", tt.lose, 1)), 0o755)
			}
			s := openStore(t)
			if _, err := s.Build(t.Context(), BuildOptions{Fragment: []byte(tt.fragment)}); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if all, err := s.List(); err != nil || len(all) > 0 {
				t.Errorf("got %v, %v, want no kernel", all, err)
			}
			if left, _ := filepath.Glob(filepath.Join(s.dir, ".*")); len(left) > 0 {
				t.Errorf("left %v", left)
			}
		})
	}
}

// A build that is broken off ends with all its processes, and leaves the log alone.
func TestBuildCancel(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	fakeSource(t, `sh -c 'trap "" TERM INT HUP; echo begun; while :; do sleep 4711; done' & sh -c 'while :; do :; done'`)
	s := openStore(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	_, err := s.Build(ctx, BuildOptions{Progress: func(_ string, done, _ int64) {
		if done > 0 {
			cancel(enough)
		}
	}})
	if !errors.Is(err, enough) {
		t.Errorf("got %v, want the cause", err)
	}
	wantOnly(t, s, buildLog)
}

func TestBuildTools(t *testing.T) {
	bin := fakeSource(t, goodMake)
	t.Setenv("PATH", bin)
	for _, name := range []string{"flex", "ld"} {
		if err := os.Remove(filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(bin, "gcc"), []byte("#!/bin/sh\nread line; [ \"$line\" != '#include <gelf.h>' ]\n"), 0o755)
	_, err := openStore(t).Build(t.Context(), BuildOptions{})
	missing, ok := errors.AsType[*MissingError](err)
	if !ok || missing.Remedy() != "apt-get install apt dpkg binutils flex tar xz-utils gzip libelf-dev" {
		t.Errorf("got %v, want what to install", err)
	}
}

// What a killed process has left goes in the end; what is being made stays.
func TestPrune(t *testing.T) {
	s := openStore(t)
	busy, done, err := s.workDir()
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(s.dir, tempPrefix+"dead")
	young := filepath.Join(s.dir, tempPrefix+"young")
	for _, dir := range []string{dead, young} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Now().Add(-2 * tempLifetime)
	for _, dir := range []string{dead, busy} {
		if err := os.Chtimes(dir, old, old); err != nil {
			t.Fatal(err)
		}
	}
	s.prune()
	for dir, want := range map[string]bool{dead: false, young: true, busy: true} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s: got %v, want it there: %v", dir, err, want)
		}
	}
	if err := done(); err != nil {
		t.Error(err)
	}
	if err := unix.Access(busy, unix.F_OK); err == nil {
		t.Error("a finished directory is still there")
	}
}
