package local_test

import (
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/local"
)

// A sandbox with a kernel of its own, chosen by the environment.
func TestQEMU(t *testing.T) {
	imagetest.Default(t)
	t.Setenv(local.DriverEnv, "qemu")
	m, err := local.Open(t.Context(), local.Options{})
	if err != nil {
		t.Skipf("QEMU is not ready: %v: run `apt-get install qemu-system-x86`, `bouvet kernel fetch` and `make build`", err)
	}
	defer func() {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{Hostname: "box"})
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.ExecuteCode(t.Context(), "python", "import platform; print(platform.node(), 6 * 7)"); err != nil || r.Stdout != "box 42\n" {
		t.Errorf("got %+v, %v, want box 42", r, err)
	}
}
