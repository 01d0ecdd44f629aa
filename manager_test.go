package bouvet_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// ready is a guest that answers pings and nothing else; it costs little.
var ready = vmtest.Scripted(pingOnly)

// F1, F3, K6: several sandboxes, in the order of their creation.
func TestManager(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready})
	m := newManager(t, fake, bouvet.ManagerOptions{})
	var ids []bouvet.SandboxID
	for range 5 {
		id, err := m.Create(t.Context(), bouvet.Config{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if got := m.List(); !slices.Equal(got, ids) {
		t.Errorf("got %v, want %v", got, ids)
	}
	for _, id := range ids {
		if s, err := m.Get(id); err != nil || s.ID() != id {
			t.Errorf("got %v, %v, want sandbox %v", s, err, id)
		}
	}
	unknown := bouvet.NewSandboxID()
	var missing *bouvet.NotFoundError
	if _, err := m.Get(unknown); !errors.As(err, &missing) || missing.ID != unknown {
		t.Errorf("got %v, want NotFound(%v)", err, unknown)
	}
	if err := m.Destroy(t.Context(), unknown); !errors.Is(err, bouvet.ErrNotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
	if err := m.Destroy(t.Context(), ids[2]); err != nil {
		t.Error(err)
	}
	if err := m.Destroy(t.Context(), ids[2]); !errors.Is(err, bouvet.ErrNotFound) {
		t.Errorf("got %v for the second Destroy, want NotFound", err)
	}
	if got, want := m.List(), slices.Delete(slices.Clone(ids), 2, 3); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if err := m.DestroyAll(t.Context()); err != nil || fake.Living() != 0 || len(m.List()) != 0 {
		t.Errorf("got %v, %d machines and %v, want nothing left", err, fake.Living(), m.List())
	}
	if _, err := m.Create(t.Context(), bouvet.Config{}); err != nil {
		t.Errorf("after DestroyAll: %v", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := m.Create(t.Context(), bouvet.Config{}); !errors.Is(err, bouvet.ErrInvalidState) {
		t.Errorf("after Close: got %v, want an invalid state", err)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestNewManagerRefuses(t *testing.T) {
	if _, err := bouvet.NewManager(bouvet.ManagerOptions{}); !errors.Is(err, bouvet.ErrInvalidConfig) {
		t.Errorf("without a driver: got %v", err)
	}
	fake := vmtest.NewFake(t, vmtest.FakeOptions{})
	if _, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: fake, Defaults: bouvet.Config{VCPUs: -1}}); !errors.Is(err, bouvet.ErrInvalidConfig) {
		t.Errorf("with bad defaults: got %v", err)
	}
	m := newManagerWithout(t, fake)
	if _, err := m.Create(t.Context(), bouvet.Config{}); !errors.Is(err, bouvet.ErrInvalidConfig) {
		t.Errorf("without an image: got %v", err)
	}
}

func newManagerWithout(t *testing.T, d vm.Driver) *bouvet.Manager {
	t.Helper()
	m, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: d})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The manager's defaults fill what a Config leaves open.
func TestManagerDefaults(t *testing.T) {
	m := newManager(t, vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready}), bouvet.ManagerOptions{
		Defaults: bouvet.Config{MemoryMiB: 64, VCPUs: 1, RootfsPath: "/other.erofs", Timeout: time.Minute, Env: []string{"A=b"}},
	})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{VCPUs: 3})
	if err != nil {
		t.Fatal(err)
	}
	c := s.Config()
	if c.MemoryMiB != 64 || c.VCPUs != 3 || c.RootfsPath != "/other.erofs" || c.Timeout != time.Minute || len(c.Env) != 1 || c.Language != "python" || c.RPCTimeout != 30*time.Second || c.ConnectTimeout != 10*time.Second {
		t.Errorf("got %+v", c)
	}
}

// The limit counts creations under way, too, and a failed one gives its place back.
func TestManagerLimit(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready, CreateDelay: 20 * time.Millisecond})
	m := newManager(t, fake, bouvet.ManagerOptions{MaxSandboxes: 3})
	var made, refused atomic.Int64
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			switch _, err := m.Create(t.Context(), bouvet.Config{}); {
			case err == nil:
				made.Add(1)
			case errors.Is(err, bouvet.ErrLimit):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made.Load() != 3 || refused.Load() != 17 || fake.Most() != 3 {
		t.Errorf("got %d made, %d refused, %d at once, want 3, 17, 3", made.Load(), refused.Load(), fake.Most())
	}
	if err := m.Destroy(t.Context(), m.List()[0]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Create(ctx, bouvet.Config{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if _, err := m.Create(t.Context(), bouvet.Config{}); err != nil {
		t.Errorf("after a destroyed and a failed one: %v", err)
	}
}

// T39: one ID at once has one winner, and is never used again.
func TestManagerSameID(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready, CreateDelay: 5 * time.Millisecond})
	m := newManager(t, fake, bouvet.ManagerOptions{})
	id := bouvet.NewSandboxID()
	var won atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			switch got, err := m.Create(t.Context(), bouvet.Config{ID: id}); {
			case err == nil && got == id:
				won.Add(1)
			case !errors.Is(err, vm.ErrExists):
				t.Errorf("got %v, %v, want ErrExists", got, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("got %d winners, want 1", won.Load())
	}
	if err := m.Destroy(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Create(t.Context(), bouvet.Config{ID: id}); !errors.Is(err, vm.ErrExists) {
		t.Errorf("got %v, want the driver to refuse a used ID", err)
	}
}

// Destroy of a sandbox that is being created: the creation is undone, and no
// other call waits for it.
func TestDestroyWhileCreating(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: vmtest.Silent})
	m := newManager(t, fake, bouvet.ManagerOptions{})
	id := bouvet.NewSandboxID()
	created := make(chan error, 1)
	go func() { _, err := m.Create(t.Context(), bouvet.Config{ID: id}); created <- err }()
	for fake.Living() == 0 {
		select {
		case err := <-created:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	var state *bouvet.InvalidStateError
	if _, err := m.Get(id); !errors.As(err, &state) || state.Actual != bouvet.Creating {
		t.Errorf("Get: got %v, want InvalidState{ready, creating}", err)
	}
	if got := m.List(); len(got) != 0 {
		t.Errorf("List: got %v, want none", got)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if err := m.Destroy(short, bouvet.NewSandboxID()); !errors.Is(err, bouvet.ErrNotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
	if err := m.Destroy(t.Context(), id); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	if err := <-created; !errors.Is(err, bouvet.ErrInvalidState) {
		t.Errorf("Create: got %v, want an invalid state", err)
	}
	if _, err := m.Get(id); !errors.Is(err, bouvet.ErrNotFound) || fake.Living() != 0 {
		t.Errorf("got %v and %d machines, want nothing left", err, fake.Living())
	}
}

// A Destroy that fails leaves the sandbox to be destroyed again; DestroyAll goes
// on after an error and tells all of them.
func TestDestroyFails(t *testing.T) {
	boom := errors.New("boom")
	var failing atomic.Bool
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready})
	m := newManager(t, vmtest.NewFaulty(fake, func(point string, _ int) error {
		if point == vmtest.BeforeDestroy && failing.Load() {
			return boom
		}
		return nil
	}), bouvet.ManagerOptions{})
	for range 3 {
		if _, err := m.Create(t.Context(), bouvet.Config{}); err != nil {
			t.Fatal(err)
		}
	}
	failing.Store(true)
	id := m.List()[0]
	if err := m.Destroy(t.Context(), id); !errors.Is(err, boom) || !errors.Is(err, bouvet.ErrVM) {
		t.Errorf("got %v, want boom", err)
	}
	if s, err := m.Get(id); err != nil || s.State() != bouvet.Destroyed {
		t.Errorf("got %v, want the sandbox, destroyed", err)
	}
	err := m.DestroyAll(t.Context())
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) != 3 {
		t.Errorf("got %v, want three errors", err)
	}
	failing.Store(false)
	if err := m.DestroyAll(t.Context()); err != nil || fake.Living() != 0 {
		t.Errorf("got %v and %d machines, want none", err, fake.Living())
	}
}

// E7, T36: an error at each operation of the driver in turn leaves nothing, and
// neither does a creation cancelled there.
func TestFaultSweep(t *testing.T) {
	boom := errors.New("boom")
	for _, cancels := range []bool{false, true} {
		for n := 1; ; n++ {
			ctx, cancel := context.WithCancel(t.Context())
			fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready})
			images := &countingImages{}
			var at string
			faulty := vmtest.NewFaulty(fake, func(point string, i int) error {
				if i != n {
					return nil
				}
				if at = point; cancels {
					cancel()
					return nil
				}
				return boom
			})
			m := newManager(t, faulty, bouvet.ManagerOptions{Images: images})
			s, err := m.CreateSandbox(ctx, bouvet.Config{})
			if err == nil {
				err = s.Destroy(t.Context())
			}
			if err != nil && !errors.Is(err, boom) && !errors.Is(err, context.Canceled) {
				t.Errorf("point %d, %s, cancel %v: got %v", n, at, cancels, err)
			}
			if err := m.DestroyAll(t.Context()); err != nil {
				t.Errorf("point %d, %s, cancel %v: %v", n, at, cancels, err)
			}
			if fake.Living() != 0 || images.held() != 0 {
				t.Errorf("point %d, %s, cancel %v: left %d machines and %d images", n, at, cancels, fake.Living(), images.held())
			}
			cancel()
			if faulty.Points() < n {
				break
			}
		}
	}
}

// T39, F4: 500 sandboxes, 32 at a time, with commands, concurrent and repeated
// destruction and cancellation at random moments.
func TestManagerStorm(t *testing.T) {
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: ready})
	images := &countingImages{}
	m := newManager(t, fake, bouvet.ManagerOptions{Images: images, MaxSandboxes: 40})
	slots := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for i := range 500 {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if i%5 == 0 {
				time.AfterFunc(rand.N(3*time.Millisecond), cancel)
			}
			s, err := m.CreateSandbox(ctx, bouvet.Config{})
			if err != nil {
				if ctx.Err() == nil {
					t.Error(err)
				}
				return
			}
			var users sync.WaitGroup
			for range 3 {
				users.Go(func() {
					for {
						if err := s.Client().Ping(t.Context()); err != nil {
							return // destroyed under our feet
						}
					}
				})
			}
			var destroyed atomic.Int64
			for range 3 {
				users.Go(func() {
					switch err := m.Destroy(t.Context(), s.ID()); {
					case err == nil:
						destroyed.Add(1)
					case !errors.Is(err, bouvet.ErrNotFound):
						t.Error(err)
					}
				})
			}
			if i%7 == 0 {
				fake.Kill(s.ID().String())
			}
			users.Wait()
			if destroyed.Load() == 0 {
				t.Error("nobody destroyed the sandbox")
			}
		})
	}
	wg.Wait()
	if len(m.List()) != 0 || fake.Living() != 0 || images.held() != 0 {
		t.Errorf("left: %v, %d machines, %d images", m.List(), fake.Living(), images.held())
	}
}
