package vmtest

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

// A Subject is a driver that TestDriver holds to the contract.
type Subject struct {
	// New returns the driver. It is called once in each section, whose end is the
	// end of t. All drivers it returns share one state.
	New func(t testing.TB) vm.Driver
	// Image is the root file system: one with sh, bash, coreutils, mount and
	// python3. Its agent is the real one.
	Image string
	// Kill ends a machine's main process as kill -9 does.
	Kill func(t testing.TB, m vm.Machine)
	// CPUTime returns the time on the host's processors that a machine has used. It
	// is needed where the driver limits that.
	CPUTime func(t testing.TB, m vm.Machine) time.Duration
	// Scope is what the ledger of each section watches besides this process and its
	// descendants. Its Dirs must hold what the driver makes for a machine and
	// nothing else; when the driver says that a machine is gone they must be empty
	// at once.
	Scope testutil.Scope
}

// isolationFake is what a Fake's Features call its isolation: none at all. Its
// commands run on this host.
const isolationFake = "fake"

// bound is how long anything but a deliberate wait may take: a machine that is
// busy with other tests is slow.
var bound = testutil.Patience(60 * time.Second)

// TestDriver runs the suite. Each section is a subtest with a leak ledger. What the
// driver says it cannot do is skipped.
func TestDriver(t *testing.T, s Subject) {
	for _, group := range []struct {
		name     string
		sections []section
	}{
		{"create", createSections},
		{"dial", dialSections},
		{"destroy", destroySections},
		{"exec", execSections},
		{"transfer", transferSections},
		{"isolation", isolationSections},
		{"limits", limitSections},
		{"hostile", hostileSections},
		{"pause", pauseSections},
		{"snapshot", snapshotSections},
		{"disk", diskSections},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, section := range group.sections {
				t.Run(section.name, func(t *testing.T) {
					testutil.Ledger(t, s.Scope)
					section.run(&env{T: t, s: s, d: s.New(t)})
				})
			}
		})
	}
}

// A section is one subtest of the suite.
type section struct {
	name string
	run  func(e *env)
}

// env is what a section works with.
type env struct {
	*testing.T
	s Subject
	d vm.Driver
}

// sandboxed skips the section unless commands of the guest run in a sandbox. What
// needs it would harm the host.
func (e *env) sandboxed() {
	e.Helper()
	if e.fake() {
		e.Skip("a fake machine isolates nothing: run the suite on a real driver")
	}
}

func (e *env) fake() bool { return e.d.Features().Isolation == isolationFake }

// config describes a small machine with an ID of its own.
func (e *env) config() vm.Config {
	return vm.Config{ID: strings.ToLower(rand.Text()), Image: e.s.Image, MemoryMiB: 128, VCPUs: 1}
}

// context ends with the section, or when that has taken too long.
func (e *env) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	e.Cleanup(cancel)
	return ctx
}

// create makes a machine that is destroyed when the section ends.
func (e *env) create(c vm.Config) vm.Machine {
	e.Helper()
	m, err := e.d.Create(e.context(), c)
	if err != nil {
		e.Fatalf("Create: %v", err)
	}
	e.Cleanup(func() {
		if err := m.Destroy(e.context(), 0); err != nil {
			e.Errorf("Destroy: %v", err)
		}
	})
	return m
}

// destroy destroys m before the section's end.
func (e *env) destroy(m vm.Machine) {
	e.Helper()
	if err := m.Destroy(e.context(), 0); err != nil {
		e.Fatalf("Destroy: %v", err)
	}
}

// nothingLeft fails unless all that machines are made of is gone at this moment.
func (e *env) nothingLeft() {
	e.Helper()
	for _, dir := range e.s.Scope.Dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			e.Fatal(err)
		}
		for _, entry := range entries {
			e.Errorf("left over: %s", filepath.Join(dir, entry.Name()))
		}
	}
	e.swept()
}

// swept fails unless a sweep finds nothing.
func (e *env) swept() {
	e.Helper()
	if found, err := e.d.Sweep(e.context(), false); err != nil || len(found) > 0 {
		e.Errorf("Sweep: got %+v, %v, want nothing", found, err)
	}
}

// ended waits for the machine's end.
func (e *env) ended(m vm.Machine, limit time.Duration) {
	e.Helper()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-m.Done():
	case <-late.C:
		e.Fatalf("Done is still open after %v", limit)
	}
}

// living fails if the machine has ended.
func (e *env) living(m vm.Machine) {
	e.Helper()
	select {
	case <-m.Done():
		e.Fatalf("machine has ended: %v", m.Err())
	default:
	}
	if err := m.Err(); err != nil {
		e.Errorf("Err of a living machine: got %v, want nil", err)
	}
}

// eventually waits until cond holds.
func (e *env) eventually(what string, cond func() bool) {
	e.Helper()
	late := time.NewTimer(bound)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late.C:
			e.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// wantGone fails unless err says that the machine is gone.
func (e *env) wantGone(what string, err error) {
	e.Helper()
	if !errors.Is(err, vm.ErrGone) {
		e.Errorf("%s: got %v, want an error wrapping ErrGone", what, err)
	}
}
