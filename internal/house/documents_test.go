package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What readers come for is there.
func TestDocumentsSayWhatTheyMust(t *testing.T) {
	for name, texts := range map[string][]string{
		"README.md": {
			"\nmake demo ", "\nmake test ", "\n## For whom\n", "\n## Sixty seconds\n", "\n## What it is not\n", "\n## How it compares\n",
		},
		"docs/ARCHITECTURE.md": {"\n## Floors\n", "\n## Decisions\n"},
		"docs/SECURITY.md":     {"\n## Promises\n", "\n## Not promised\n"},
		// L14: the guest's kernel needs other options and another module than seed 002 says.
		"docs/PROTOCOL.md": {"RFC 2119", "CONFIG_VSOCKETS", "CONFIG_VIRTIO_VSOCKETS", "vmw_vsock_virtio_transport"},
		"HACKING.md":       {"make lint", "## Tests"},
		"CHANGELOG.md":     {"## "},
		"LICENSE":          {"Apache License", "Version 2.0"},
	} {
		content := document(t, name)
		for _, text := range texts {
			if !strings.Contains(content, text) {
				t.Errorf("%s has no %q", name, text)
			}
		}
	}
}

// Every command of make that a document shows is one, and the usual ones are there.
func TestMakeHasTheTargets(t *testing.T) {
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(document(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	for _, want := range []string{"help", "build", "demo", "test", "lint", "fmt", "fuzz", "bench", "image", "clean"} {
		if !slices.Contains(targets, want) {
			t.Errorf("make %s is missing", want)
		}
	}
	shown := regexp.MustCompile("(?m)(?:^|`)make ([a-z0-9-]+)")
	files(t, ".md", func(path string, content []byte) {
		for _, m := range shown.FindAllSubmatch(content, -1) {
			if target := string(m[1]); !slices.Contains(targets, target) {
				t.Errorf("%s shows make %s, which make does not have", path, target)
			}
		}
	})
	if gate := document(t, ".ci/run"); !strings.Contains(gate, "make lint") || !strings.Contains(gate, "make test") {
		t.Error("the gate runs not both, lint and the tests")
	}
}
