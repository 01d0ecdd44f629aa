package local_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm/qemu"
)

// T30: sandboxes that are copies of one machine that has just started share nothing that
// tells them apart or that is to be secret, and know the time.
func TestBase(t *testing.T) {
	imagetest.Default(t)
	m, err := local.Open(t.Context(), local.Options{Driver: qemu.Name})
	if err != nil {
		t.Skipf("QEMU is not ready: %v: run `apt-get install qemu-system-x86`, `bouvet kernel fetch` and `make build`", err)
	}
	defer func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	seen := map[string]string{}
	for _, name := range []string{"one", "two", "three"} {
		s, err := m.CreateSandbox(t.Context(), bouvet.Config{MemoryMiB: 192, VCPUs: 1, Hostname: name})
		if err != nil {
			t.Fatal(err)
		}
		r, err := s.Execute(t.Context(), "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; date +%s")
		if err != nil || r.ExitCode != 0 {
			t.Fatalf("got %+v, %v", r, err)
		}
		lines := strings.Split(strings.TrimSpace(r.Stdout), "\n")
		if lines[0] != name || len(lines) != 5 {
			t.Fatalf("got %q", lines)
		}
		for _, line := range lines[:4] {
			if line = strings.TrimSpace(line); line == "" || seen[line] != "" {
				t.Errorf("%q of %s is empty, or that of %q", line, name, seen[line])
			}
			seen[line] = name
		}
		now, err := strconv.ParseInt(lines[4], 10, 64)
		if off := time.Since(time.Unix(now, 0)).Abs(); err != nil || off > 10*time.Second {
			t.Errorf("the time of %s is off by %v: %v", name, off, err)
		}
	}
}
