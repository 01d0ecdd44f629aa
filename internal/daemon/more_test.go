package daemon_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		limits daemon.Limits
		owner  daemon.Owner // of the one too many
		fails  bool
	}{
		{"of the owner", daemon.Limits{PerOwner: 1}, alice, true},
		{"of another", daemon.Limits{PerOwner: 1}, bob, false},
		{"of memory", daemon.Limits{MemoryMiB: daemon.DefaultMemoryMiB + 1}, bob, true},
		{"of processors", daemon.Limits{VCPUs: 3}, bob, true},
		{"none", daemon.Limits{PerOwner: -1, MemoryMiB: -1, VCPUs: -1}, alice, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := newHouse(t, func(h *house) { h.options.Limits = tt.limits })
			sb := h.create(daemon.CreateOptions{})
			_, err := h.Create(t.Context(), tt.owner, daemon.CreateOptions{})
			if !tt.fails {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var quota *daemon.QuotaError
			if !errors.As(err, &quota) || quota.RetryAfter <= 0 || !errors.Is(err, daemon.ErrQuota) {
				t.Errorf("one too many: %v", err)
			}
			if err := h.Pause(t.Context(), alice, sb.ID, true); err != nil {
				t.Fatal(err)
			}
			if _, err := h.Create(t.Context(), tt.owner, daemon.CreateOptions{}); err != nil {
				t.Errorf("in place of a paused one: %v", err)
			}
			if _, _, err := h.Connect(t.Context(), alice, sb.ID, 0, true); !errors.Is(err, daemon.ErrQuota) {
				t.Errorf("resumed beside it: %v", err)
			}
			if got, err := h.Get(t.Context(), alice, sb.ID); err != nil || got.State != daemon.StatePaused {
				t.Errorf("then it is %+v, %v", got, err)
			}
		})
	}
}

func TestLimitOfWhatIsSaved(t *testing.T) {
	h := newHouse(t, func(h *house) { h.options.Limits = daemon.Limits{Snapshots: 1} })
	sb := h.create(daemon.CreateOptions{})
	sn, err := h.Snapshot(t.Context(), alice, sb.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, true); !errors.Is(err, daemon.ErrQuota) {
		t.Errorf("one too many: %v", err)
	}
	h.run(sb.ID, "true")
	if err := h.DeleteTemplate(t.Context(), alice, sn.ID); err != nil {
		t.Fatal(err)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, true); err != nil {
		t.Error(err)
	}
}

func TestWhatCannotBeServedIsRefused(t *testing.T) {
	h := newHouse(t)
	no := false
	long := map[string]string{"k": strings.Repeat("x", daemon.MaxMetadataBytes)}
	for _, tt := range []struct {
		name string
		o    daemon.CreateOptions
		want error
	}{
		{"template", daemon.CreateOptions{Template: "none"}, daemon.ErrNotFound},
		{"unusable template", daemon.CreateOptions{Template: "broken"}, daemon.ErrNotFound},
		{"time", daemon.CreateOptions{TTL: daemon.MaxTTL + 1}, daemon.ErrInvalid},
		{"metadata", daemon.CreateOptions{Metadata: long}, daemon.ErrInvalid},
		{"environment", daemon.CreateOptions{Env: long}, daemon.ErrInvalid},
		{"end", daemon.CreateOptions{OnTimeout: "explode"}, daemon.ErrInvalid},
		{"private traffic", daemon.CreateOptions{Network: daemon.Network{AllowPublicTraffic: &no}}, daemon.ErrInvalid},
		{"pause without memory", daemon.CreateOptions{OnTimeout: daemon.TimeoutPauses}, daemon.ErrUnsupported},
	} {
		if _, err := h.Create(t.Context(), alice, tt.o); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if n := h.fake.Created(); n != 0 {
		t.Errorf("%d machines were made", n)
	}
	sb := h.create(daemon.CreateOptions{Template: "other:default", Secure: true, Network: daemon.Network{AllowPublicTraffic: &no}})
	if len(sb.TrafficToken) != 43 || sb.Template != "other" {
		t.Errorf("created %+v", sb)
	}
	if _, err := h.Snapshot(t.Context(), alice, sb.ID, "../x"); !errors.Is(err, daemon.ErrInvalid) {
		t.Errorf("name: %v", err)
	}
	if err := h.DeleteTemplate(t.Context(), alice, "base"); !errors.Is(err, daemon.ErrUnsupported) {
		t.Errorf("delete of an image: %v", err)
	}
	for _, n := range []int{0, daemon.MaxForkCount + 1} {
		if _, err := h.Fork(t.Context(), alice, sb.ID, n, 0); !errors.Is(err, daemon.ErrInvalid) {
			t.Errorf("%d copies: %v", n, err)
		}
	}
}

func TestListsAreInOrderAndPaged(t *testing.T) {
	h := newHouse(t)
	var ids []daemon.ID
	for i := range 5 {
		ids = append(ids, h.create(daemon.CreateOptions{Metadata: map[string]string{"n": string(rune('0' + i%2))}}).ID)
	}
	if err := h.Pause(t.Context(), alice, ids[1], true); err != nil {
		t.Fatal(err)
	}
	walk := func(f daemon.Filter) (got []daemon.ID) {
		t.Helper()
		for {
			page, err := h.List(t.Context(), alice, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, sb := range page.Sandboxes {
				got = append(got, sb.ID)
			}
			if f.Token = page.Next; f.Token == "" {
				return got
			}
		}
	}
	newest := slices.Clone(ids)
	slices.Reverse(newest)
	for _, tt := range []struct {
		name string
		f    daemon.Filter
		want []daemon.ID
	}{
		{"all", daemon.Filter{}, newest},
		{"in pages", daemon.Filter{Limit: 2}, newest},
		{"one by one, the oldest first", daemon.Filter{Limit: 1, OldestFirst: true}, ids},
		{"paused", daemon.Filter{States: []daemon.State{daemon.StatePaused}}, ids[1:2]},
		{"by metadata", daemon.Filter{Metadata: map[string]string{"n": "1"}}, []daemon.ID{ids[3], ids[1]}},
		{"of a template", daemon.Filter{Template: "base", Limit: 4}, newest},
		{"of another", daemon.Filter{Template: "other"}, nil},
	} {
		if got := walk(tt.f); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, not %v", tt.name, got, tt.want)
		}
	}
	for _, f := range []daemon.Filter{{Limit: -1}, {Limit: daemon.MaxPage + 1}, {Token: "x"}, {Token: strings.Repeat("A", 1000)}} {
		if _, err := h.List(t.Context(), alice, f); !errors.Is(err, daemon.ErrInvalid) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// T45: no key, an empty, a wrong, a malformed and a revoked one open nothing.
func TestKeysOpenDoorsUntilTheyAreRevoked(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	key, k, err := daemon.NewKey(ctx, h.db, "mine", "", true)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := h.Authenticate(ctx, key)
	if err != nil || owner != (daemon.Owner{ID: k.Owner, Name: "mine", Admin: true}) {
		t.Errorf("authenticated as %+v, %v", owner, err)
	}
	h.until("its use is written down", func() bool {
		keys, err := daemon.Keys(ctx, h.db)
		return err == nil && !keys[0].Used.IsZero()
	})
	if err := h.db.RevokeKey(ctx, k.ID, time.Now()); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{key, "", "e2b_", "e2b_" + strings.Repeat("0", 40), strings.ToUpper(key), key + " ", "e2b_" + strings.Repeat("g", 40)} {
		if _, err := h.Authenticate(ctx, bad); !errors.Is(err, daemon.ErrUnauthorized) {
			t.Errorf("%.20q: %v", bad, err)
		}
	}
	if owner, err := h.Authenticate(daemon.WithOwner(ctx, daemon.Local()), ""); err != nil || !owner.Admin {
		t.Errorf("on the unix socket: %+v, %v", owner, err)
	}
}

func TestWhatWasRunningIsPausedAtTheEndAndWakes(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{TTL: time.Hour, Metadata: map[string]string{"a": "b"}})
	slept := h.create(daemon.CreateOptions{})
	if err := h.Pause(t.Context(), alice, slept.ID, true); err != nil {
		t.Fatal(err)
	}
	sn, err := h.Snapshot(t.Context(), alice, sb.ID, "kept")
	if err != nil {
		t.Fatal(err)
	}
	if n := h.pins.held.Load(); n != 1 {
		t.Errorf("%d images are held for snapshots of one image", n)
	}
	h.close(daemon.ClosePauses)
	if _, err := h.Create(t.Context(), alice, daemon.CreateOptions{}); !errors.Is(err, daemon.ErrDraining) {
		t.Errorf("create after the end: %v", err)
	}
	h.open()
	if n := h.pins.held.Load(); n != 1 {
		t.Errorf("%d images are held after a restart", n)
	}
	h.run(sb.ID, "true") // wakes by itself: nobody had asked for its pause
	got, err := h.Get(t.Context(), alice, sb.ID)
	if err != nil || got.Metadata["a"] != "b" || got.State != daemon.StateRunning {
		t.Errorf("then it is %+v, %v", got, err)
	}
	if _, err := h.Use(t.Context(), slept.ID); !errors.Is(err, daemon.ErrConflict) {
		t.Errorf("one that its owner paused: %v", err)
	}
	made := h.create(daemon.CreateOptions{Template: "kept"})
	if made.Template != sn.ID {
		t.Errorf("made of %s", made.Template)
	}
	h.close(daemon.CloseKills)
	h.open()
	page, err := h.List(t.Context(), alice, daemon.Filter{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != slept.ID {
		t.Errorf("left: %+v, %v", page, err)
	}
}

// T39: whatever happens at once, one wins, the others are told, and nothing is left.
func TestStorm(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	var all sync.WaitGroup
	for range 12 {
		all.Go(func() {
			sb, err := h.Create(ctx, alice, daemon.CreateOptions{AutoResume: true})
			if err != nil {
				t.Error(err)
				return
			}
			var within sync.WaitGroup
			for range 3 {
				within.Go(func() {
					for range 3 {
						var err error
						short, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(40))*time.Millisecond+time.Millisecond)
						switch rand.IntN(6) {
						case 0:
							err = h.Pause(short, alice, sb.ID, true)
						case 1:
							_, _, err = h.Connect(short, alice, sb.ID, time.Minute, true)
						case 2:
							_, err = h.Fork(short, alice, sb.ID, 1, time.Minute)
						case 3:
							_, err = h.Use(short, sb.ID)
						case 4:
							err = h.SetTimeout(short, alice, sb.ID, time.Minute)
						case 5:
							_, err = h.Snapshot(short, alice, sb.ID, "")
						}
						cancel()
						if err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, daemon.ErrConflict) && !errors.Is(err, daemon.ErrNotFound) && !errors.Is(err, daemon.ErrBusy) {
							t.Errorf("in the storm: %v", err)
						}
					}
				})
			}
			if rand.IntN(2) == 0 {
				within.Wait()
			}
			won := make(chan bool)
			for range 2 {
				go func() {
					err := h.Kill(ctx, alice, sb.ID)
					if err != nil && !errors.Is(err, daemon.ErrNotFound) {
						t.Errorf("kill: %v", err)
					}
					won <- err == nil
				}()
			}
			if a, b := <-won, <-won; a == b {
				t.Errorf("of two kills %v and %v won", a, b)
			}
			within.Wait()
		})
	}
	all.Wait()
	for { // copies, and those whose creator gave up
		page, err := h.List(ctx, alice, daemon.Filter{})
		if err != nil {
			t.Fatal(err)
		}
		for _, sb := range page.Sandboxes {
			if err := h.Kill(ctx, alice, sb.ID); err != nil && !errors.Is(err, daemon.ErrNotFound) {
				t.Error(err)
			}
		}
		if len(page.Sandboxes) == 0 {
			break
		}
	}
	snaps, _, err := h.Snapshots(ctx, alice, "", "", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, sn := range snaps {
		if err := h.DeleteTemplate(ctx, alice, sn.ID); err != nil {
			t.Error(err)
		}
	}
	h.until("nothing is left", func() bool { return h.Counts() == daemon.Counts{} })
	h.nothingElse(nil)
}

// T38: an end in the middle of creations leaves nothing half made.
func TestAnEndDuringCreations(t *testing.T) {
	h := newHouse(t, func(h *house) {
		h.fake = vmtest.NewFake(t, vmtest.FakeOptions{CreateDelay: 30 * time.Millisecond})
		h.driver = h.fake
	})
	begun := make(chan struct{}, 50)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			begun <- struct{}{}
			if _, err := h.Create(t.Context(), alice, daemon.CreateOptions{}); err != nil && !errors.Is(err, daemon.ErrDraining) {
				t.Errorf("create: %v", err)
			}
		})
	}
	for range 50 {
		<-begun
	}
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience(30*time.Second))
	defer cancel()
	h.closed = true
	if err := h.Close(ctx, daemon.CloseKills); err != nil {
		t.Error(err)
	}
	all.Wait()
	if n := h.fake.Living(); n != 0 {
		t.Errorf("%d machines live on", n)
	}
	h.nothingElse(nil)
	if err := h.db.Close(); err != nil {
		t.Error(err)
	}
}

// Whatever the driver fails to do, the sandbox is in a state that is told, and can be
// killed; nothing is left.
func TestAFailureOfTheDriverIsUndone(t *testing.T) {
	life := func(h *house) (failures []error) {
		ctx := t.Context()
		sb, err := h.Create(ctx, alice, daemon.CreateOptions{})
		if err != nil {
			return []error{err}
		}
		failures = append(failures, h.Pause(ctx, alice, sb.ID, true), errOf(h.Get(ctx, alice, sb.ID)))
		_, _, err = h.Connect(ctx, alice, sb.ID, 0, true)
		failures = append(failures, err)
		_, err = h.Fork(ctx, alice, sb.ID, 1, 0)
		failures = append(failures, err)
		if err == nil || !errors.Is(err, daemon.ErrNotFound) { // its machine may have died
			_, _, err = h.Connect(ctx, alice, sb.ID, 0, true)
			failures = append(failures, err)
		}
		for {
			page, err := h.List(ctx, alice, daemon.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, sb := range page.Sandboxes {
				if err := h.Kill(ctx, alice, sb.ID); err != nil && !errors.Is(err, daemon.ErrNotFound) {
					t.Errorf("kill: %v", err)
				}
			}
			if len(page.Sandboxes) == 0 {
				return failures
			}
		}
	}
	broken := errors.New("out of order")
	under := func(fail int) int {
		var faulty *vmtest.Faulty
		h := newHouse(t, func(h *house) {
			faulty = vmtest.NewFaulty(h.fake, func(point string, n int) error {
				// What fails to be destroyed is tried again a second later.
				if n != fail || strings.Contains(point, "destroy") {
					return nil
				}
				return broken
			})
			h.driver = faulty
		})
		failures := errors.Join(life(h)...)
		if fail == 0 && failures != nil {
			t.Errorf("without a failure: %v", failures)
		}
		h.until("nothing is left", func() bool { return h.Counts() == daemon.Counts{} })
		h.nothingElse(nil)
		h.close(daemon.CloseKills)
		return faulty.Points()
	}
	for n := range under(0) {
		under(n + 1)
	}
}
