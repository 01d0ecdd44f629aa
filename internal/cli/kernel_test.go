package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Without a kernel the commands say how to get one.
func TestNoKernel(t *testing.T) {
	w := newTestWorld(t, newFakeBackend(t))
	out, errs := &w.out, &w.err
	if code := w.run(t, "kernel", "ls"); code != 0 || !strings.HasPrefix(out.String(), "USED") {
		t.Errorf("ls: got %d, %q", code, out)
	}
	if code := w.run(t, "kernel", "inspect"); code == 0 || !strings.Contains(errs.String(), "bouvet kernel fetch") {
		t.Errorf("inspect: got %d, %q, want the remedy", code, errs)
	}
	if code := w.run(t, "kernel", "fetch", "--package", "../evil"); code == 0 || !strings.Contains(errs.String(), "not the name of a kernel") {
		t.Errorf("fetch: got %d, %q, want a refusal", code, errs)
	}
}

// T06: what is no kernel is refused with the reason.
func TestKernelRefuses(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"kernel", "import", junk}, "neither a bzImage nor an ELF image"},
		{[]string{"kernel", "import", "/no/such/file"}, "no such file"},
		{[]string{"kernel", "import", junk, "--config", "/no/such/config"}, "no such file"},
		{[]string{"kernel", "build", "--config", junk}, "line 1 is none"},
		{[]string{"kernel", "build", "--jobs", "-1"}, "-1 jobs"},
		{[]string{"kernel", "rm", "absent"}, "no guest kernel"},
		{[]string{"kernel", "rm", ""}, "without its name"},
	} {
		w := newTestWorld(t, newFakeBackend(t))
		if code := w.run(t, tt.args...); code == 0 || !strings.Contains(w.err.String(), tt.want) {
			t.Errorf("%q: got %d, %q, want %q", tt.args, code, &w.err, tt.want)
		}
	}
}
