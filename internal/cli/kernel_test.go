package cli

import (
	"strings"
	"testing"
)

// Without a kernel the commands say how to get one.
func TestNoKernel(t *testing.T) {
	w := newTestWorld(t, newFakeBackend(t))
	out, errs := &w.out, &w.err
	if code := w.run(t, "kernel", "ls"); code != 0 || !strings.HasPrefix(out.String(), "RELEASE") {
		t.Errorf("ls: got %d, %q", code, out)
	}
	if code := w.run(t, "kernel", "inspect"); code == 0 || !strings.Contains(errs.String(), "bouvet kernel fetch") {
		t.Errorf("inspect: got %d, %q, want the remedy", code, errs)
	}
	if code := w.run(t, "kernel", "fetch", "--package", "../evil"); code == 0 || !strings.Contains(errs.String(), "not the name of a kernel") {
		t.Errorf("fetch: got %d, %q, want a refusal", code, errs)
	}
}
