package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/vm"
)

// T36: whichever step of a creation fails, its error is told and nothing is left.
func TestCreateFails(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	t.Run("helper cannot start", func(t *testing.T) {
		broken := *d
		broken.exe = filepath.Join(t.TempDir(), "none")
		failCreate(t, &broken, os.ErrNotExist)
	})
	t.Run("helper is not ours", func(t *testing.T) {
		broken := *d
		broken.exe = "/bin/false"
		failCreate(t, &broken, nil)
	})
	t.Run("cgroups", func(t *testing.T) {
		if !d.Features().MemoryLimit {
			t.Skip("this host lets us set no limits: run as root, or with a delegated cgroup")
		}
		fault := errors.New("injected")
		for failing := 0; ; failing++ {
			tree := *d.keeper.Cgroups
			broken, keeper := *d, *d.keeper
			keeper.Cgroups, broken.keeper = &tree, &keeper
			n, hit := 0, false
			tree.Write = func(path, value string) error {
				n++
				if n > failing {
					hit = true
					return fault
				}
				return d.keeper.Cgroups.Write(path, value)
			}
			if failing > 0 && failing == len(tree.Settings("x", cgroup.Limits{}))+len(tree.Dirs("x")) {
				m, err := broken.Create(testContext(t), testConfig(t))
				if err != nil || hit {
					t.Fatalf("without a fault: got %v after %d writes", err, n)
				}
				if err := m.Destroy(testContext(t), 0); err != nil {
					t.Error(err)
				}
				return
			}
			failCreate(t, &broken, fault)
		}
	})
}

func failCreate(t *testing.T, d *Driver, want error) {
	t.Helper()
	c := testConfig(t)
	m, err := d.Create(testContext(t), c)
	if err == nil {
		t.Fatalf("got a machine: %v", m.Destroy(testContext(t), 0))
	}
	if want != nil && !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	wantNothing(t, d, c.ID)
}

// An executable that cannot run a sentry is refused with the remedy.
func TestUnfitExecutable(t *testing.T) {
	const shell = "/bin/sh"
	if err := checkExe(shell); err == nil {
		t.Skipf("%s is statically linked here: run this where a distribution linked it, on Debian for example", shell)
	}
	_, err := New(Options{StateDir: t.TempDir(), AgentImage: "/none", Exe: shell})
	if !errors.Is(err, vm.ErrUnsupported) || !strings.Contains(err.Error(), "CGO_ENABLED=0") {
		t.Errorf("got %v, want ErrUnsupported with the remedy", err)
	}
	if _, err := New(Options{StateDir: "relative", AgentImage: "/none"}); err == nil {
		t.Error("a relative state directory is accepted")
	}
}

// T36: a disk so full that no record can be written does not keep what is there to
// be removed, neither from Destroy nor from a sweep.
func TestUnwritableRecord(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	// The name under which a record is written is taken.
	obstruct := func(id string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(d.keeper.Base, id, "machine.json.tmp", "x"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("destroy", func(t *testing.T) {
		c := testConfig(t)
		m := create(t, d, c)
		obstruct(c.ID)
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
		wantNothing(t, d, c.ID)
	})
	t.Run("sweep", func(t *testing.T) {
		c := testConfig(t)
		o := startOwner(t, orders{Options: options(d), Config: c, Ask: "true"}, nil)
		obstruct(c.ID)
		o.kill(t)
		found, err := d.Sweep(testContext(t), true)
		if err != nil || len(found) == 0 {
			t.Errorf("got %v, %v, want some leftovers", found, err)
		}
		for _, l := range found {
			if !l.Removed {
				t.Errorf("not removed: %+v", l)
			}
		}
		wantNothing(t, d, c.ID)
	})
}
