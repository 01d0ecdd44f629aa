package bouvet_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

func newBases(t *testing.T) (*snapstore.Bases, string) {
	t.Helper()
	dir := t.TempDir()
	b, err := snapstore.OpenBases(dir)
	if err != nil {
		t.Fatal(err)
	}
	return b, dir
}

// based is an image store with a digest, which bases go by.
type based struct{ countingImages }

func (b *based) Acquire(ctx context.Context, name string) (bouvet.Image, error) {
	image, err := b.countingImages.Acquire(ctx, name)
	image.Digest = "sha256:" + strings.Repeat("0", 64)
	return image, err
}

// baseNames are the bases that are there.
func baseNames(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*", "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Sandboxes of one shape are copies of one machine that has just started, however many
// are wanted at once, and each is thawed before anybody has it.
func TestBase(t *testing.T) {
	var r renewals
	bases, dir := newBases(t)
	images := &based{}
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: r.guest, Base: "kernel"})
	m := newManager(t, fake, bouvet.ManagerOptions{Images: images, Bases: bases})
	const n = 8
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			s, err := m.CreateSandbox(t.Context(), bouvet.Config{MemoryMiB: 64})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := s.Execute(t.Context(), "true"); err != nil || s.Config().MemoryMiB != 64 {
				t.Errorf("got %+v, %v", s.Config(), err)
			}
		})
	}
	all.Wait()
	if fake.Created() != n+1 || fake.Living() != n || len(baseNames(t, dir)) != 1 {
		t.Errorf("%d machines were made for %d sandboxes, %d live, %d bases", fake.Created(), n, fake.Living(), len(baseNames(t, dir)))
	}
	if got := strings.Count(strings.Join(r.take(), ", "), "machine-id"); got != n {
		t.Errorf("%d of %d were thawed", got, n)
	}
	for _, other := range []bouvet.Config{{MemoryMiB: 128}, {MemoryMiB: 64, VCPUs: 1}} {
		if _, err := m.CreateSandbox(t.Context(), other); err != nil {
			t.Fatal(err)
		}
	}
	if got := len(baseNames(t, dir)); got != 3 {
		t.Errorf("three shapes have %d bases", got)
	}
	if err := m.DestroyAll(t.Context()); err != nil || images.held() != 0 {
		t.Errorf("got %v, and %d images are held", err, images.held())
	}
	for _, base := range baseNames(t, dir) {
		key := filepath.Base(filepath.Dir(base))
		if err := bases.Drop(key); err != nil {
			t.Error(err)
		}
	}
	if got := baseNames(t, dir); len(got) != 0 {
		t.Errorf("bases in use by nobody cannot be removed: %v", got)
	}
}

// No base where the driver sees no use in one, or nobody knows what is in the image.
func TestNoBase(t *testing.T) {
	for name, tt := range map[string]struct {
		base   string
		images bouvet.Images
		cfg    bouvet.Config
	}{
		"driver":    {"", &based{}, bouvet.Config{}},
		"no digest": {"kernel", bareImages{}, bouvet.Config{}},
		"path":      {"kernel", &based{}, bouvet.Config{RootfsPath: "/root.erofs"}},
	} {
		t.Run(name, func(t *testing.T) {
			bases, dir := newBases(t)
			fake := vmtest.NewFake(t, vmtest.FakeOptions{Base: tt.base})
			m := newManager(t, fake, bouvet.ManagerOptions{Images: tt.images, Bases: bases})
			if _, err := m.CreateSandbox(t.Context(), tt.cfg); err != nil {
				t.Fatal(err)
			}
			if fake.Created() != 1 || len(baseNames(t, dir)) != 0 {
				t.Errorf("%d machines were made, %d bases", fake.Created(), len(baseNames(t, dir)))
			}
		})
	}
}

type bareImages struct{}

func (bareImages) Acquire(context.Context, string) (bouvet.Image, error) {
	return bouvet.Image{Path: "/root.erofs", Release: func() {}}, nil
}

// A base that cannot be made keeps nobody from a sandbox. One whose copies do not come up
// costs one of them, and goes. Nothing is left.
func TestBaseFails(t *testing.T) {
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		point string
		want  error
	}{
		"snapshot": {vmtest.BeforeSnapshot, nil}, "restore": {vmtest.AfterRestore, boom},
	} {
		t.Run(name, func(t *testing.T) {
			bases, dir := newBases(t)
			fake := vmtest.NewFake(t, vmtest.FakeOptions{Base: "kernel"})
			var failing atomic.Bool
			failing.Store(true)
			faulty := vmtest.NewFaulty(fake, func(at string, _ int) error {
				if at == tt.point && failing.Load() {
					return boom
				}
				return nil
			})
			m := newManager(t, faulty, bouvet.ManagerOptions{Images: &based{}, Bases: bases})
			for range 2 {
				if _, err := m.CreateSandbox(t.Context(), bouvet.Config{}); !errors.Is(err, tt.want) {
					t.Fatalf("got %v, want %v", err, tt.want)
				}
			}
			if fake.Living() != len(m.List()) || len(baseNames(t, dir)) != 0 {
				t.Errorf("%d machines of %d sandboxes and %d bases are left", fake.Living(), len(m.List()), len(baseNames(t, dir)))
			}
			failing.Store(false)
			if _, err := m.CreateSandbox(t.Context(), bouvet.Config{}); err != nil {
				t.Fatal(err)
			}
			if len(baseNames(t, dir)) != 1 {
				t.Error("there is no base after it works again")
			}
		})
	}
}

// T31: a base that was damaged is not used, and there is another then.
func TestBaseDamaged(t *testing.T) {
	bases, dir := newBases(t)
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Base: "kernel"})
	m := newManager(t, fake, bouvet.ManagerOptions{Images: &based{}, Bases: bases})
	first, err := m.CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	manifest := baseNames(t, dir)[0]
	b, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(manifest, []byte(strings.Replace(string(b), `"fake"`, `"mock"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, created := range []int{4, 6} { // the next one starts from nothing, then there is a base again
		if _, err := m.CreateSandbox(t.Context(), bouvet.Config{}); err != nil {
			t.Fatal(err)
		}
		if got := fake.Created(); got > created {
			t.Errorf("%d machines were made, want at most %d", got, created)
		}
	}
	if len(baseNames(t, dir)) != 1 {
		t.Error("there is no base again")
	}
}

// A creation that is given up, or whose ID is taken, does not start anew from nothing.
func TestBaseGivenUp(t *testing.T) {
	bases, _ := newBases(t)
	fake := vmtest.NewFake(t, vmtest.FakeOptions{Base: "kernel"})
	enough := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	faulty := vmtest.NewFaulty(fake, func(at string, _ int) error {
		if at == vmtest.BeforeSnapshot {
			cancel(enough)
		}
		return nil
	})
	m := newManager(t, faulty, bouvet.ManagerOptions{Images: &based{}, Bases: bases})
	if _, err := m.CreateSandbox(ctx, bouvet.Config{}); !errors.Is(err, enough) {
		t.Errorf("got %v", err)
	}
	if fake.Created() != 1 || fake.Living() != 0 {
		t.Errorf("%d machines were made, %d live, want 1 and 0", fake.Created(), fake.Living())
	}
	id := bouvet.NewSandboxID()
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	made := fake.Created()
	if _, err := m.CreateSandbox(t.Context(), bouvet.Config{ID: id}); !errors.Is(err, vm.ErrExists) || fake.Created() != made {
		t.Errorf("an ID that was used: got %v, %d machines more", err, fake.Created()-made)
	}
}
