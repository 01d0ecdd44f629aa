package vmtest_test

import (
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// The fake keeps to the contract that it stands in for.
func TestFake(t *testing.T) {
	var fakes []*vmtest.Fake
	vmtest.TestDriver(t, vmtest.Subject{
		New: func(t testing.TB) vm.Driver {
			f := vmtest.NewFake(t, vmtest.FakeOptions{CreateDelay: 2 * time.Millisecond})
			fakes = append(fakes, f)
			return f
		},
		Image: "/image",
		Kill: func(t testing.TB, m vm.Machine) {
			for _, f := range fakes {
				if f.Kill(m.ID()) {
					return
				}
			}
			t.Errorf("there is no machine %s", m.ID())
		},
	})
}
