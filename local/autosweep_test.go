package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// A sweeper counts how often it was asked, and finds what it is given.
type sweeper struct {
	vm.Driver
	found []vm.Leftover
	err   error
	asked int
}

func (s *sweeper) Sweep(context.Context, bool) ([]vm.Leftover, error) {
	s.asked++
	return s.found, s.err
}

// abandon leaves a machine's directory as a program that was killed does.
func abandon(t *testing.T, base, id string, r rundir.Record) string {
	t.Helper()
	d, err := rundir.Create(base, id, r)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	return d.Path()
}

// T26: what is left of any driver's machines is found, whichever driver is used.
func TestSweepAllDrivers(t *testing.T) {
	base := t.TempDir()
	abandon(t, base, "aaaaaaaa-1", rundir.Record{Driver: "a", State: rundir.StateRunning})
	abandon(t, base, "aaaaaaaa-2", rundir.Record{Driver: "a", State: rundir.StateCreating})
	other := abandon(t, base, "bbbbbbbb-1", rundir.Record{Driver: "b", State: rundir.StateRunning})
	// Neither a living owner's nor a detached machine that runs is left over.
	held, err := rundir.Create(base, "cccccccc-1", rundir.Record{Driver: "c", State: rundir.StateRunning})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Close() }()
	abandon(t, base, "cccccccc-2", rundir.Record{Driver: "c", State: rundir.StateRunning, Detached: true, Main: held.Record().Owner})
	// What cannot be read is nobody's.
	unreadable := abandon(t, base, "dddddddd-1", rundir.Record{Driver: "d"})
	if err := os.WriteFile(filepath.Join(unreadable, "machine.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}

	fake := vmtest.NewFake(t, vmtest.FakeOptions{})
	broken := errors.New("a cgroup is busy")
	a := &sweeper{Driver: fake, found: []vm.Leftover{{Kind: "directory", Machine: "aaaaaaaa-1", What: "x", Removed: true}}, err: broken}
	missing := errors.New("its program is missing")
	var made []string
	found, err := sweep(t.Context(), base, true, func(name string) (vm.Driver, error) {
		made = append(made, name)
		if name == "a" {
			return a, nil
		}
		return nil, missing
	})
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	if got := strings.Join(made, " "); got != "a b" || a.asked != 1 {
		t.Errorf("drivers %q were made and the first asked %d times, want a and b, once", got, a.asked)
	}
	var told []string
	for _, l := range found {
		told = append(told, l.What)
		switch l.What {
		case "x":
		case other:
			if l.Removed || l.Machine != "bbbbbbbb-1" || !strings.Contains(l.Error, missing.Error()) {
				t.Errorf("got %+v, want the reason why it stays", l)
			}
		case unreadable:
			if l.Removed || l.Error == "" {
				t.Errorf("got %+v, want the reason why it stays", l)
			}
		default:
			t.Errorf("found %+v", l)
		}
	}
	if len(told) != 3 {
		t.Errorf("found %q, want 3", told)
	}
}

// Where nothing is left, no driver is made: that costs time at every start.
func TestSweepOfNothing(t *testing.T) {
	state := t.TempDir()
	if found, err := Sweep(t.Context(), Options{StateDir: state}, true); len(found) > 0 || err != nil {
		t.Errorf("got %+v, %v", found, err)
	}
	if found, err := sweep(t.Context(), filepath.Join(state, "none"), true, nil); len(found) > 0 || err != nil {
		t.Errorf("got %+v, %v", found, err)
	}
}

// A record may name a driver that this program does not have.
func TestSweepOfUnknownDriver(t *testing.T) {
	state := t.TempDir()
	for i, name := range []string{"\x1b[2Jauto", "auto", ""} {
		abandon(t, filepath.Join(state, "machines"), fmt.Sprintf("aaaaaaaa-%d", i), rundir.Record{Driver: name, State: rundir.StateRunning})
	}
	found, err := Sweep(t.Context(), Options{StateDir: state}, true)
	if err != nil || len(found) != 3 {
		t.Errorf("got %q, %v, want three", fmt.Sprint(found), err)
	}
	for _, l := range found {
		if l.Removed || !strings.Contains(l.Error, "there is no") || strings.Contains(l.Error, "\x1b") {
			t.Errorf("got %q", fmt.Sprint(l))
		}
	}
}
