package qemu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// soakBoots is how many machines are started in a row: $BOUVET_SOAK, which make soak
// sets, or a handful.
func soakBoots(t *testing.T) int {
	t.Helper()
	text := os.Getenv("BOUVET_SOAK")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("BOUVET_SOAK is %q, want a number", text)
	}
	return n
}

// bootAndPing makes a machine, waits for the agent's answer, and destroys it.
func bootAndPing(t testing.TB, d *Driver, c vm.Config) (time.Duration, error) {
	begin := time.Now()
	m, err := d.Create(testContext(t), c)
	if err != nil {
		return 0, err
	}
	client, err := bouvet.Connect(testContext(t), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
	took := time.Since(begin)
	if err != nil {
		err = fmt.Errorf("%w; console: %.2000q", err, m.Console())
	} else {
		err = client.Close()
	}
	return took, errors.Join(err, m.Destroy(testContext(t), 0))
}

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
			c, n := testConfig(t), soakBoots(t)
			var all []time.Duration
			for i := range n {
				c.ID, c.VCPUs = fmt.Sprintf("soak-boot-%04d", i), 1+i%2
				took, err := bootAndPing(t, d, c)
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

// A hundred machines (a fifth of BOUVET_SOAK's, at least one ten), ten at once, come
// and go and leave nothing.
func TestSoakTens(t *testing.T) {
	state := t.TempDir()
	machines := filepath.Join(state, "machines")
	if err := os.Mkdir(machines, 0o700); err != nil {
		t.Fatal(err)
	}
	d := testDriver(t, testOptions(t, state))
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}, Dirs: []string{machines}})
	rounds := max(1, soakBoots(t)/20)
	for round := range rounds {
		var all sync.WaitGroup
		for i := range 10 {
			c := testConfig(t)
			c.ID = fmt.Sprintf("soak-tens-%03d-%02d", round, i)
			all.Go(func() {
				if _, err := bootAndPing(t, d, c); err != nil {
					t.Errorf("%s: %v", c.ID, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d machines, ten at once", rounds*10)
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
