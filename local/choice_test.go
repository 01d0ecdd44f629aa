package local_test

import (
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/local"
)

// On this machine, whatever it is like, trying every driver comes to an end, gVisor
// works, and nothing is left. The answer is remembered: the same state directory
// chooses the same driver, without an image that anybody has made.
func TestTryHere(t *testing.T) {
	exe := helper(t)
	testutil.Ledger(t, testutil.Scope{})
	opts := local.Options{StateDir: t.TempDir(), Exe: exe}
	began := time.Now()
	trials, err := local.Try(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("all trials took %v", time.Since(began))
	taken := ""
	for _, trial := range trials {
		t.Logf("%s: taken %t after %v: %v (%s)", trial.Name(), trial.Taken, trial.Took, trial.Err, trial.Remedy)
		if trial.Taken {
			taken += trial.Driver
		}
		if trial.Driver == "gvisor" && trial.Err != nil {
			t.Errorf("gVisor does not work: %v", trial.Err)
		}
	}
	driver, err := local.Driver(t.Context(), opts)
	if err != nil || driver.Name() != taken {
		t.Errorf("got %v, %v, want %q", driver, err, taken)
	}
}

// The benchmark of a choice that is remembered: what every start pays.
func BenchmarkChoice(b *testing.B) {
	opts := local.Options{StateDir: b.TempDir(), Exe: helper(b)}
	if _, err := local.Driver(b.Context(), opts); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := local.Driver(b.Context(), opts); err != nil {
			b.Fatal(err)
		}
	}
}

// T26: a sweep of all drivers leaves alone what lives.
func TestSweepSparesTheLiving(t *testing.T) {
	opts := local.Options{StateDir: t.TempDir(), Exe: helper(t), Defaults: bouvet.Config{Image: "tiny"}}
	store, err := local.Store(opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Import(t.Context(), "tiny", t.TempDir(), image.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	m, err := local.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), bouvet.Config{}); err != nil {
		t.Error(err)
	}
	// What lives is left alone.
	if left, err := local.Sweep(t.Context(), opts, true); err != nil || len(left) > 0 {
		t.Errorf("got %+v, %v, want nothing", left, err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
