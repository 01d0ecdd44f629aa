package house_test

import (
	"bytes"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// root is the top of the repository, from this package's directory.
const root = "../.."

// maxLines is the length at which a file has more than one idea in it.
const maxLines = 500

// files calls visit with each file of the checkout whose name ends in suffix.
func files(t *testing.T, suffix string, visit func(path string, content []byte)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || path == filepath.Join(root, "bin")):
			return fs.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(path, suffix):
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		visit(path, content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

func TestFilesAreOfOneIdea(t *testing.T) {
	files(t, ".go", func(path string, content []byte) {
		if n := bytes.Count(content, []byte("\n")); n > maxLines && !generated.Match(content) {
			t.Errorf("%s has %d lines, more than %d: split it", path, n, maxLines)
		}
	})
}

// maxTracked bounds a file of the repository; test data is smaller than that.
const maxTracked = 1 << 20

func TestNoBuiltBinaryIsCommitted(t *testing.T) {
	cmd := exec.Command("git", "ls-files", "-z")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("cannot ask git what is committed: %v; run this in a clone, after `apt-get install git`", err)
	}
	for name := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		f, err := os.Open(filepath.Join(root, name))
		if err != nil {
			continue // deleted, and not yet committed
		}
		start := make([]byte, 4)
		n, _ := io.ReadFull(f, start)
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if bytes.HasPrefix(start[:n], []byte("\x7fELF")) {
			t.Errorf("%s is a built binary: git rm --cached it", name)
		}
		if info.Size() > maxTracked {
			t.Errorf("%s has %d bytes, more than %d: let a test make it", name, info.Size(), maxTracked)
		}
	}
}

var (
	fence = regexp.MustCompile("(?ms)^```.*?^```$")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	files(t, ".md", func(path string, content []byte) {
		for _, m := range link.FindAllSubmatch(fence.ReplaceAll(content, nil), -1) {
			target, _, _ := strings.Cut(string(m[1]), "#")
			if target == "" || strings.Contains(target, ":") {
				continue // within the document, or elsewhere on the net
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), target)); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, target)
			}
		}
	})
}
