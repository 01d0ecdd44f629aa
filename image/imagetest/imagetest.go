// Package imagetest gives tests a root file system to run on.
package imagetest

import (
	"errors"
	"testing"

	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/statedir"
)

// Default returns the path of the default image in the default state directory
// ($BOUVET_STATE_DIR where that is set) and holds the image until the test ends.
// It skips the test if the image has not been built.
func Default(t testing.TB) string {
	t.Helper()
	dir, err := statedir.Images("")
	if err != nil {
		t.Skipf("no state directory: %v; run `BOUVET_STATE_DIR=/a/directory make image`", err)
	}
	s, err := image.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	h, err := s.Acquire(t.Context(), image.DefaultName)
	if errors.Is(err, image.ErrNotFound) {
		t.Skipf("there is no default image in %s: run `make image`", dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Release(); err != nil {
			t.Error(err)
		}
	})
	return h.Path()
}
