package qemu

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// T06: no boot hangs, with any of this host's kernels, with one processor and with
// two.
func TestSoakBoots(t *testing.T) {
	testKernel(t)
	dir, err := statedir.Kernels("")
	if err != nil {
		t.Fatal(err)
	}
	store, err := kernel.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := store.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		t.Run(k.Manifest.Release+"-"+k.Digest[len("sha256:"):][:8], func(t *testing.T) {
			o := testOptions(t, t.TempDir())
			o.Kernel = k
			d := testDriver(t, o)
			testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
			c, n := testConfig(t), vmtest.SoakCount(t, 3)
			var all []time.Duration
			for i := range n {
				c.ID, c.VCPUs = fmt.Sprintf("soak-boot-%04d", i), 1+i%2
				took, err := vmtest.Cycle(d, c)
				if err != nil {
					t.Fatalf("boot %d of %d: %v", i+1, n, err)
				}
				all = append(all, took)
			}
			slices.Sort(all)
			t.Logf("%d boots: fastest %v, median %v, slowest %v", n, all[0], all[len(all)/2], all[len(all)-1])
		})
	}
}

// T06: a kernel that never boots, and one that runs an init which is not ours, are
// noticed by their silence; the machine can be removed, and nothing is left.
func TestNeverAnswers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, o *Options) *Driver
	}{
		{"kernel that does nothing", func(t *testing.T, o *Options) *Driver {
			o.Kernel = kernelOf(t, deadKernel())
			return testDriver(t, *o)
		}},
		{"another init", func(t *testing.T, o *Options) *Driver {
			d := testDriver(t, *o)
			d.initramfs = initramfsOf(t, t.TempDir(), bootfiles.AgentPath, tinyInit())
			return d
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := testOptions(t, t.TempDir())
			testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
			d := tt.spoil(t, &o)
			m, err := d.Create(testContext(t), testConfig(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := bouvet.Connect(testContext(t), m, &bouvet.ClientOptions{ConnectTimeout: 3 * time.Second}); !errors.Is(err, bouvet.ErrAgentTimeout) {
				t.Errorf("got %v, want a timeout of the agent", err)
			}
			if err := m.Err(); err != nil {
				t.Errorf("the machine has ended: %v", err)
			}
			if err := m.Destroy(testContext(t), 0); err != nil {
				t.Error(err)
			}
		})
	}
}
