package qemu

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func testProgram(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath(Program)
	if err != nil {
		t.Skipf("%v: run `apt-get install %s`", err, Package)
	}
	return program
}

// What the trial machine runs goes through all the modes of a processor, and says so
// by QEMU's exit status.
func TestTrialRuns(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	program := testProgram(t)
	user, err := accelCredential("trial", false)
	if err != nil {
		t.Fatal(err)
	}
	if err := runTrial(testContext(t), program, AccelTCG, user); err != nil {
		t.Error(err)
	}
}

// T06: whatever KVM does here, there is an answer in time, and its reason.
func TestAcceleration(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	program, state := testProgram(t), t.TempDir()
	find := func() (Acceleration, error) {
		a, err := newAccelerator(program, state, AccelAuto)
		if err != nil {
			t.Fatal(err)
		}
		return a.find(testContext(t))
	}
	start := time.Now()
	found, err := find()
	t.Logf("%+v, %v after %v", found, err, time.Since(start))
	if took := time.Since(start); took > 2*trialTimeout {
		t.Errorf("it took %v", took)
	}
	if err != nil || (found.Name == AccelTCG) != strings.HasPrefix(found.Reason, "KVM: ") {
		t.Errorf("got %+v, %v, want an answer, with the reason if it is TCG", found, err)
	}
	again, err := find()
	if err != nil || again != found {
		t.Errorf("asked again: got %+v, %v, want %+v", again, err, found)
	}
	forced, err := newAccelerator(program, state, AccelKVM)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forced.find(testContext(t)); (err == nil) != (found.Name == AccelKVM) || (err != nil && !errors.Is(err, vm.ErrUnsupported)) {
		t.Errorf("KVM asked for: got %v, with %+v", err, found)
	}
	if _, err := newAccelerator(program, state, "xen"); !errors.Is(err, vm.ErrInvalidConfig) {
		t.Errorf("got %v, want an invalid configuration", err)
	}
}

// A device that opens and runs nothing must not be taken for one that works: the
// trial of this host's, by our own user, who may open it.
func TestTrialOfThisHost(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	program := testProgram(t)
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("%v: run where there is a %s, working or not", err, kvmDevice)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	err = runTrial(testContext(t), program, AccelKVM, nil)
	t.Logf("KVM here: %v, after %v", err, time.Since(start))
	if err != nil && !strings.HasPrefix(err.Error(), "trial guest did not run: ") {
		t.Errorf("got %v, want that it did not run", err)
	}
}

// T06: a trial of a QEMU that fails, hangs or lies is told, and nothing is left.
func TestTrialFails(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"refuses", "echo no such accelerator >&2; exit 1", "exit status 1: no such accelerator"},
		{"ends early", "exit 0", "too early"},
		{"hangs", "exec sleep 4711", "nothing came of it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			user, err := accelCredential("trial", false)
			if err != nil {
				t.Fatal(err)
			}
			if err := runTrial(testContext(t), script(t, tt.text), AccelKVM, user); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// A verdict counts as long as what it depends on: this boot, this QEMU, this device,
// and for a failure some minutes. Whatever else the file holds, there is an answer.
func TestVerdictKept(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	key := verdictKey{Boot: "b", Program: "p", Device: "d", User: 1}
	for _, tt := range []struct {
		name string
		v    verdict
		want bool
	}{
		{"success", verdict{Key: key}, true},
		{"new failure", verdict{Key: key, Failure: "f", Tried: time.Now()}, true},
		{"old failure", verdict{Key: key, Failure: "f", Tried: time.Now().Add(-retryAfter)}, false},
		{"failure to come", verdict{Key: key, Failure: "f", Tried: time.Now().Add(time.Hour)}, false},
	} {
		a := &accelerator{state: t.TempDir()}
		if err := a.write(&tt.v); err != nil {
			t.Fatal(err)
		}
		got, ok := a.read()
		if !ok || got.Key != key || got.Failure != tt.v.Failure || got.fresh() != tt.want {
			t.Errorf("%s: got %+v, %v, fresh %v, want %v", tt.name, got, ok, got.fresh(), tt.want)
		}
	}
	for _, text := range []string{"", "{", "null", "[]", `{"key":1}`, strings.Repeat("x", verdictMax+1)} {
		a := &accelerator{state: t.TempDir()}
		if err := os.WriteFile(a.path(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if v, ok := a.read(); ok && v.Key.Boot != "" {
			t.Errorf("%.20q: got %+v", text, v)
		}
	}
	a := &accelerator{state: t.TempDir()}
	if err := os.Symlink("/dev/zero", a.path()); err != nil {
		t.Fatal(err)
	}
	if _, ok := a.read(); ok {
		t.Error("a link to a device was read")
	}
}

// The verdict on file is taken without a trial, and one of another boot is not.
func TestVerdictUsed(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	if _, err := os.Stat(kvmDevice); err != nil {
		t.Skipf("%v: run where there is a %s, working or not", err, kvmDevice)
	}
	state, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	a, err := newAccelerator(script(t, "echo ran >"+ran+"; exit 1"), state, AccelAuto)
	if err != nil {
		t.Fatal(err)
	}
	key, err := a.key()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.write(&verdict{Key: key}); err != nil {
		t.Fatal(err)
	}
	if found, err := a.find(testContext(t)); err != nil || found.Name != AccelKVM {
		t.Errorf("got %+v, %v, want what the file says", found, err)
	}
	key.Boot = "another"
	if err := a.write(&verdict{Key: key}); err != nil {
		t.Fatal(err)
	}
	a.settled.Store(nil)
	if found, err := a.find(testContext(t)); err != nil || found.Name != AccelTCG {
		t.Errorf("got %+v, %v, want a trial, which fails", found, err)
	}
	// A caller who has left is told that, and nothing is concluded from it.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	b, err := newAccelerator(a.program, t.TempDir(), AccelAuto)
	if err != nil {
		t.Fatal(err)
	}
	if found, err := b.find(ended); err == nil && found.Name == AccelKVM {
		t.Errorf("got %+v, %v", found, err)
	}
}
