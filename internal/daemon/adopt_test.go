package daemon_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// A detaching driver's machines outlive whoever made them: until the test ends.
type detaching struct{ *vmtest.Fake }

func (d detaching) Features() vm.Features {
	f := d.Fake.Features()
	f.Detached = true
	return f
}

func (d detaching) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	if !c.Detached {
		return nil, errors.New("a machine that would end with its maker")
	}
	c.Detached = false
	return d.Fake.Create(ctx, c)
}

func (d detaching) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	if !c.Detached {
		return nil, errors.New("a machine that would end with its maker")
	}
	c.Detached = false
	return d.Fake.Restore(ctx, c, dir)
}

func detached(h *house) { h.driver = detaching{h.fake} }

func TestTheNextProcessTakesOverWhatLives(t *testing.T) {
	h := newHouse(t, detached)
	ctx := t.Context()
	lives := h.create(daemon.CreateOptions{TTL: time.Hour, Secure: true})
	dies := h.create(daemon.CreateOptions{})
	paused := h.create(daemon.CreateOptions{})
	if err := h.Pause(ctx, alice, paused.ID, true); err != nil {
		t.Fatal(err)
	}
	sn, err := h.Snapshot(ctx, alice, lives.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	copied := h.create(daemon.CreateOptions{Template: sn.ID})
	due := h.create(daemon.CreateOptions{TTL: 50 * time.Millisecond, OnTimeout: daemon.TimeoutPauses, PauseMemory: true})
	u, err := h.Use(ctx, lives.ID)
	if err != nil {
		t.Fatal(err)
	}
	d, err := h.Use(ctx, dies.ID)
	if err != nil {
		t.Fatal(err)
	}
	h.close(daemon.CloseLeaves)
	select {
	case <-u.Ended:
	default:
		t.Error("a use was not told of the end of the process")
	}
	h.fake.Kill(d.Machine.ID().String())
	<-d.Machine.Done()
	h.open()
	again, err := h.Use(ctx, lives.ID)
	if err != nil {
		t.Fatal(err)
	}
	if again.Machine.ID() != u.Machine.ID() || again.Sandbox.AccessToken != lives.AccessToken || !again.Sandbox.EndAt.Equal(lives.EndAt) {
		t.Errorf("taken over as %+v on %s", again.Sandbox, again.Machine.ID())
	}
	if kinds := h.kinds(lives.ID); !slices.Equal(kinds, []string{"created", "snapshot", "adopted"}) {
		t.Errorf("events %v", kinds)
	}
	if _, err := h.Get(ctx, alice, dies.ID); !errors.Is(err, daemon.ErrNotFound) || !slices.Contains(h.kinds(dies.ID), "lost") {
		t.Errorf("one that died meanwhile: %v, %v", err, h.kinds(dies.ID))
	}
	h.until("one is paused whose time is over", func() bool {
		sb, err := h.Get(ctx, alice, due.ID)
		return err == nil && sb.State == daemon.StatePaused
	})
	if err := h.DeleteTemplate(ctx, alice, sn.ID); err != nil {
		t.Error(err)
	}
	h.run(copied.ID, "true")
	if c := h.Counts(); c.Running != 2 || c.Paused != 2 || c.VCPUs != 4 {
		t.Errorf("there are %+v", c)
	}
	for _, sb := range []daemon.Sandbox{lives, copied, paused, due} {
		if err := h.Kill(ctx, alice, sb.ID); err != nil {
			t.Error(err)
		}
	}
	if c := h.Counts(); c != (daemon.Counts{}) {
		t.Errorf("left: %+v", c)
	}
	h.nothingElse(nil)
}

// T32 where machines outlive the process: at whatever step it ends, the next one has each
// machine that a sandbox runs on, and no other.
func TestTheNextProcessKnowsEachMachine(t *testing.T) {
	for _, tt := range []struct {
		step string
		// what becomes of the sandbox that the step is taken with: its state, or empty.
		want daemon.State
		do   func(h *house, id daemon.ID) error
	}{
		{"create:intent", "", nil},
		{"create:made", "", nil},
		{"create:running", daemon.StateRunning, nil},
		{"pause:intent", daemon.StateRunning, pauseIt},
		{"pause:saved", daemon.StatePaused, pauseIt},
		{"pause:paused", daemon.StatePaused, pauseIt},
		{"pause:destroyed", daemon.StatePaused, pauseIt},
		{"pause:done", daemon.StatePaused, pauseIt},
		{"resume:intent", daemon.StatePaused, pauseAndResumeIt},
		{"resume:made", daemon.StatePaused, pauseAndResumeIt},
		{"resume:running", daemon.StateRunning, pauseAndResumeIt},
		{"snapshot:intent", daemon.StateRunning, saveIt},
		{"snapshot:saved", daemon.StateRunning, saveIt},
		{"snapshot:ready", daemon.StateRunning, saveIt},
		{"kill:intent", "", killIt},
		{"kill:destroyed", "", killIt},
		{"kill:ended", "", killIt},
	} {
		t.Run(tt.step, func(t *testing.T) {
			reached := make(chan struct{})
			h := newHouse(t, detached, func(h *house) {
				h.options.Failpoint = func(step string) {
					if step == tt.step {
						close(reached)
						runtime.Goexit() // nothing more is done, as when the process ends
					}
				}
			})
			ids := make(chan daemon.ID, 1)
			go func() {
				sb, err := h.Create(t.Context(), alice, daemon.CreateOptions{})
				if err != nil || tt.do == nil {
					return
				}
				ids <- sb.ID
				_ = tt.do(h, sb.ID) // it is not heard of again
			}()
			<-reached
			h.options.Failpoint = nil
			old := h.db
			t.Cleanup(func() { _ = old.Close() })
			h.open()
			page, err := h.List(t.Context(), alice, daemon.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			var got daemon.State
			for _, sb := range page.Sandboxes {
				got = sb.State
				if tt.do != nil && sb.ID != <-ids {
					t.Error("it is another sandbox")
				}
				if _, _, err := h.Connect(t.Context(), alice, sb.ID, 0, true); err != nil {
					t.Errorf("connect: %v", err)
				}
				h.run(sb.ID, "true")
			}
			if got != tt.want {
				t.Errorf("it is %q, not %q", got, tt.want)
			}
			if n := h.fake.Living(); n != len(page.Sandboxes) {
				t.Errorf("%d machines of %d sandboxes", n, len(page.Sandboxes))
			}
			h.nothingElse(nil)
		})
	}
}

func pauseIt(h *house, id daemon.ID) error { return h.Pause(h.t.Context(), alice, id, true) }

func pauseAndResumeIt(h *house, id daemon.ID) error {
	if err := pauseIt(h, id); err != nil {
		return err
	}
	_, _, err := h.Connect(h.t.Context(), alice, id, 0, true)
	return err
}

func saveIt(h *house, id daemon.ID) error {
	_, err := h.Snapshot(h.t.Context(), alice, id, "")
	return err
}

func killIt(h *house, id daemon.ID) error { return h.Kill(h.t.Context(), alice, id) }
