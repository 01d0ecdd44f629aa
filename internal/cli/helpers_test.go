package cli

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func writeFile(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// tarOf is an archive of name, content pairs.
func tarOf(pairs ...string) io.Reader {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := 0; i+1 < len(pairs); i += 2 {
		_ = w.WriteHeader(&tar.Header{Name: pairs[i], Mode: 0o644, Size: int64(len(pairs[i+1])), Typeflag: tar.TypeReg})
		_, _ = io.WriteString(w, pairs[i+1])
	}
	_ = w.Close()
	return &b
}
