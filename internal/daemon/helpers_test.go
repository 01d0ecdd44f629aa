package daemon_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// images are a store with the default image, of which the fake driver needs no more than
// the name.
type images struct{}

func (images) Acquire(context.Context, string) (bouvet.Image, error) {
	return bouvet.Image{Path: "/image", Release: func() {}}, nil
}

func (images) List(context.Context) ([]image.Info, error) {
	return []image.Info{{Name: bouvet.DefaultImage}, {Name: "broken", Problem: "it is"}, {Name: "other"}}, nil
}

// pins counts who holds images.
type pins struct{ held atomic.Int32 }

func (p *pins) Acquire(context.Context, string) (bouvet.Image, error) {
	p.held.Add(1)
	return bouvet.Image{Path: "/image", Release: func() { p.held.Add(-1) }}, nil
}

// A house is a Service with all that it stands on, and can be left and entered again as
// by another process.
type house struct {
	*daemon.Service
	t       testing.TB
	dir     string
	fake    *vmtest.Fake
	driver  vm.Driver
	options daemon.Options
	db      *store.Store
	pins    *pins // of this process
	closed  bool
	// manager is that of all processes, if machines outlive them.
	manager *bouvet.Manager
}

var (
	alice = daemon.Owner{ID: "alice", Name: "Alice"}
	bob   = daemon.Owner{ID: "bob", Name: "Bob"}
)

func newHouse(t testing.TB, change ...func(*house)) *house {
	t.Helper()
	h := &house{t: t, dir: t.TempDir(), fake: vmtest.NewFake(t, vmtest.FakeOptions{})}
	h.driver = h.fake
	for _, c := range change {
		c(h)
	}
	h.open()
	t.Cleanup(func() { h.close(daemon.CloseKills) })
	return h
}

// open starts a Service.
func (h *house) open() {
	h.t.Helper()
	ctx := h.t.Context()
	db, err := store.Open(ctx, filepath.Join(h.dir, "state.db"), true)
	if err != nil {
		h.t.Fatal(err)
	}
	snaps, err := snapstore.Open(mkdir(h.t, h.dir, "snapshots"))
	if err != nil {
		h.t.Fatal(err)
	}
	o := h.options
	manager := h.manager
	if manager == nil {
		manager, err = bouvet.NewManager(bouvet.ManagerOptions{Driver: h.driver, Images: images{}, Snapshots: snaps, MaxSandboxes: -1})
		if err != nil {
			h.t.Fatal(err)
		}
	}
	if h.driver.Features().Detached {
		h.manager = manager
		o.Adopt = func(ctx context.Context, id bouvet.SandboxID, cfg bouvet.Config) (*bouvet.Sandbox, error) {
			if !cfg.Detached || cfg.ID != id {
				h.t.Errorf("%s is taken over as %+v", id, cfg)
			}
			sb, err := manager.Get(id)
			switch {
			case errors.Is(err, bouvet.ErrNotFound):
				return nil, vm.ErrGone
			case err == nil && sb.Err() != nil:
				return nil, errors.Join(vm.ErrGone, manager.Destroy(ctx, id))
			}
			return sb, err
		}
		o.Detach = func(context.Context) error { return nil }
	}
	h.pins = &pins{}
	o.Pins = h.pins
	o.Manager, o.Store, o.Snapshots, o.Features = manager, db, snaps, h.driver.Features()
	if o.Images == nil {
		o.Images = images{}
	}
	if h.Service, err = daemon.New(ctx, o); err != nil {
		h.t.Fatal(err)
	}
	h.db, h.closed = db, false
}

func (h *house) close(how daemon.AtClose) {
	h.t.Helper()
	if h.closed {
		return
	}
	h.closed = true
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(20*time.Second))
	defer cancel()
	if err := h.Close(ctx, how); err != nil {
		h.t.Errorf("close: %v", err)
	}
	if n := h.pins.held.Load(); n != 0 {
		h.t.Errorf("%d images are held after the end", n)
	}
	if err := h.db.Close(); err != nil {
		h.t.Errorf("close database: %v", err)
	}
}

// create makes a sandbox of Alice's.
func (h *house) create(o daemon.CreateOptions) daemon.Sandbox {
	h.t.Helper()
	sb, err := h.Create(h.t.Context(), alice, o)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// run runs a command in a sandbox and returns what it printed.
func (h *house) run(id daemon.ID, name string, args ...string) string {
	h.t.Helper()
	u, err := h.Use(h.t.Context(), id)
	if err != nil {
		h.t.Fatal(err)
	}
	defer u.Release()
	out, err := u.Machine.Command(h.t.Context(), name, args...).Output()
	if err != nil {
		h.t.Fatal(err)
	}
	return string(out)
}

// until waits for something that nobody announces.
func (h *house) until(what string, f func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), testutil.Patience(10*time.Second))
	defer cancel()
	if err := wait.Until(ctx, func() (bool, error) { return f(), nil }); err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
}

// kinds are those of a sandbox's events.
func (h *house) kinds(id daemon.ID) []string {
	h.t.Helper()
	events, err := h.Events(h.t.Context(), daemon.Local(), id, 0, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	kinds := make([]string, len(events))
	for i, e := range events {
		kinds[i] = e.Kind
	}
	return kinds
}

func mkdir(t testing.TB, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}
