package daemon_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

func TestASandboxFromItsCreationToItsEnd(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{
		Template: "base", TTL: time.Minute, Secure: true,
		Metadata: map[string]string{"a": "b"}, Env: map[string]string{"X": "1"},
	})
	if _, err := daemon.ParseID(string(sb.ID)); err != nil {
		t.Error(err)
	}
	if sb.State != daemon.StateRunning || sb.Template != "base" || sb.Owner != alice.ID || len(sb.AccessToken) != 43 || sb.TrafficToken != "" || sb.MemoryMiB != daemon.DefaultMemoryMiB || sb.DiskMiB != sb.MemoryMiB {
		t.Errorf("created %+v", sb)
	}
	if d := sb.EndAt.Sub(sb.StartedAt); d != time.Minute {
		t.Errorf("it has %v", d)
	}
	got, err := h.Get(t.Context(), alice, sb.ID)
	if err != nil || got.Metadata["a"] != "b" || got.Env["X"] != "1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if out := h.run(sb.ID, "echo", "hello"); out != "hello\n" {
		t.Errorf("it says %q", out)
	}
	if running := h.Running(); len(running) != 1 || running[0].ID != sb.ID {
		t.Errorf("running: %+v", running)
	}
	u, err := h.Use(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Kill(t.Context(), alice, sb.ID); err != nil {
		t.Fatal(err)
	}
	select {
	case <-u.Ended:
	default:
		t.Error("a use was not told of the end")
	}
	u.Release()
	if n := h.fake.Living(); n != 0 {
		t.Errorf("%d machines live on", n)
	}
	for what, err := range map[string]error{
		"kill": h.Kill(t.Context(), alice, sb.ID),
		"get":  errOf(h.Get(t.Context(), alice, sb.ID)),
		"use":  errOf(h.Use(t.Context(), sb.ID)),
	} {
		if !errors.Is(err, daemon.ErrNotFound) {
			t.Errorf("%s after the end: %v", what, err)
		}
	}
	if kinds := h.kinds(sb.ID); !slices.Equal(kinds, []string{"created", "killed"}) {
		t.Errorf("events %v", kinds)
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestPauseAndConnect(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{})
	u, err := h.Use(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, false); !errors.Is(err, daemon.ErrUnsupported) {
		t.Errorf("pause without memory: %v", err)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, true); err != nil {
		t.Fatal(err)
	}
	select {
	case <-u.Ended:
	default:
		t.Error("a use was not told of the pause")
	}
	if n := h.fake.Living(); n != 0 {
		t.Errorf("%d machines live on", n)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, true); !errors.Is(err, daemon.ErrConflict) {
		t.Errorf("second pause: %v", err)
	}
	if _, err := h.Use(t.Context(), sb.ID); !errors.Is(err, daemon.ErrConflict) {
		t.Errorf("use of a paused one: %v", err)
	}
	if got, err := h.Get(t.Context(), alice, sb.ID); err != nil || got.State != daemon.StatePaused {
		t.Errorf("got %+v, %v", got, err)
	}
	type answer struct {
		sb      daemon.Sandbox
		resumed bool
		err     error
	}
	answers := make(chan answer)
	for range 8 {
		go func() {
			var a answer
			a.sb, a.resumed, a.err = h.Connect(t.Context(), alice, sb.ID, time.Minute, true)
			answers <- a
		}()
	}
	for range 8 {
		if a := <-answers; a.err != nil || a.sb.State != daemon.StateRunning {
			t.Errorf("connect: %+v", a)
		}
	}
	if n := h.fake.Living(); n != 1 {
		t.Errorf("%d machines live", n)
	}
	before, _ := h.Get(t.Context(), alice, sb.ID)
	after, resumed, err := h.Connect(t.Context(), alice, sb.ID, time.Second, true)
	if err != nil || resumed || !after.EndAt.Equal(before.EndAt) {
		t.Errorf("connect to a running one: end %v, was %v; %v, %v", after.EndAt, before.EndAt, resumed, err)
	}
	h.run(sb.ID, "true")
	if err := h.Pause(t.Context(), alice, sb.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := h.Kill(t.Context(), alice, sb.ID); err != nil {
		t.Errorf("kill of a paused one: %v", err)
	}
	if c := h.Counts(); c != (daemon.Counts{}) {
		t.Errorf("left: %+v", c)
	}
}

func TestTheEndOfItsTime(t *testing.T) {
	h := newHouse(t)
	kept := h.create(daemon.CreateOptions{})
	killed := h.create(daemon.CreateOptions{TTL: 300 * time.Millisecond})
	paused := h.create(daemon.CreateOptions{TTL: 300 * time.Millisecond, OnTimeout: daemon.TimeoutPauses, PauseMemory: true, AutoResume: true})
	h.until("one ends", func() bool {
		_, err := h.Get(t.Context(), alice, killed.ID)
		return errors.Is(err, daemon.ErrNotFound)
	})
	h.until("one is paused", func() bool {
		sb, err := h.Get(t.Context(), alice, paused.ID)
		return err == nil && sb.State == daemon.StatePaused
	})
	h.run(paused.ID, "true") // traffic wakes it
	if sb, err := h.Get(t.Context(), alice, paused.ID); err != nil || time.Until(sb.EndAt) < daemon.DefaultTTL-time.Minute {
		t.Errorf("woken by traffic it is %+v, %v", sb, err)
	}
	h.run(kept.ID, "true")
	if err := h.SetTimeout(t.Context(), alice, kept.ID, 0); err != nil {
		t.Fatal(err)
	}
	h.until("no time ends it", func() bool {
		_, err := h.Get(t.Context(), alice, kept.ID)
		return errors.Is(err, daemon.ErrNotFound)
	})
}

func TestSnapshotsAndForks(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{Secure: true, Metadata: map[string]string{"k": "v"}})
	one, err := h.Snapshot(t.Context(), alice, sb.ID, "mine")
	if err != nil {
		t.Fatal(err)
	}
	two, err := h.Snapshot(t.Context(), alice, sb.ID, "mine")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(two.Names, []string{"mine:default"}) {
		t.Errorf("names %v", two.Names)
	}
	page, next, err := h.Snapshots(t.Context(), alice, sb.ID, "mine", "", 0)
	if err != nil || next != "" || len(page) != 1 || page[0].ID != two.ID {
		t.Errorf("by name: %+v, %q, %v", page, next, err)
	}
	page, next, err = h.Snapshots(t.Context(), alice, "", "", "", 1)
	if err != nil || next == "" || len(page) != 1 || page[0].ID != two.ID {
		t.Fatalf("first page: %+v, %q, %v", page, next, err)
	}
	page, next, err = h.Snapshots(t.Context(), alice, "", "", next, 1)
	if err != nil || next != "" || len(page) != 1 || page[0].ID != one.ID {
		t.Errorf("second page: %+v, %q, %v", page, next, err)
	}
	forks, err := h.Fork(t.Context(), alice, sb.ID, 3, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		if f.Err != nil || f.Sandbox.ID == sb.ID || f.Sandbox.AccessToken == sb.AccessToken || f.Sandbox.Metadata["k"] != "v" {
			t.Errorf("fork %+v", f)
		}
		h.run(f.Sandbox.ID, "true")
	}
	for _, name := range []string{"mine", "mine:default", two.ID, one.ID} {
		made := h.create(daemon.CreateOptions{Template: name})
		if want := map[bool]string{true: one.ID, false: two.ID}[name == one.ID]; made.Template != want {
			t.Errorf("%s made of %s", name, made.Template)
		}
	}
	if err := h.DeleteTemplate(t.Context(), bob, one.ID); !errors.Is(err, daemon.ErrNotFound) {
		t.Errorf("another deletes it: %v", err)
	}
	if err := h.DeleteTemplate(t.Context(), alice, one.ID); err != nil {
		t.Errorf("delete of one in use: %v", err)
	}
	if _, err := h.Create(t.Context(), alice, daemon.CreateOptions{Template: one.ID}); !errors.Is(err, daemon.ErrNotFound) {
		t.Errorf("create of a deleted one: %v", err)
	}
	list, err := h.List(t.Context(), alice, daemon.Filter{})
	if err != nil || list.Running != 8 {
		t.Errorf("%d run, %v", list.Running, err)
	}
	for _, sb := range list.Sandboxes {
		if err := h.Kill(t.Context(), alice, sb.ID); err != nil {
			t.Error(err)
		}
	}
	if c := h.Counts(); c != (daemon.Counts{Snapshots: 1}) {
		t.Errorf("left: %+v", c)
	}
}

// T47: what belongs to another does not exist.
func TestWhatBelongsToAnotherDoesNotExist(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{})
	ctx := t.Context()
	for what, err := range map[string]error{
		"get":        errOf(h.Get(ctx, bob, sb.ID)),
		"kill":       h.Kill(ctx, bob, sb.ID),
		"pause":      h.Pause(ctx, bob, sb.ID, true),
		"timeout":    h.SetTimeout(ctx, bob, sb.ID, time.Second),
		"refresh":    h.Refresh(ctx, bob, sb.ID, time.Second),
		"network":    h.SetNetwork(ctx, bob, sb.ID, daemon.Network{}),
		"snapshot":   errOf(h.Snapshot(ctx, bob, sb.ID, "")),
		"fork":       errOf(h.Fork(ctx, bob, sb.ID, 1, 0)),
		"events":     errOf(h.Events(ctx, bob, sb.ID, 0, 10)),
		"connect":    func() error { _, _, err := h.Connect(ctx, bob, sb.ID, 0, true); return err }(),
		"no sandbox": errOf(h.Get(ctx, alice, "i00000000000000000000")),
	} {
		if !errors.Is(err, daemon.ErrNotFound) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if page, err := h.List(ctx, bob, daemon.Filter{}); err != nil || len(page.Sandboxes) != 0 {
		t.Errorf("list: %+v, %v", page, err)
	}
	if _, err := h.Get(ctx, daemon.Local(), sb.ID); err != nil {
		t.Errorf("the administrator: %v", err)
	}
}

func TestAMachineThatDiesTakesItsSandboxAlong(t *testing.T) {
	h := newHouse(t)
	sb := h.create(daemon.CreateOptions{})
	u, err := h.Use(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	h.fake.Kill(u.Machine.ID().String())
	<-u.Ended
	h.until("it is gone", func() bool { return h.Counts() == daemon.Counts{} })
	if kinds := h.kinds(sb.ID); !slices.Equal(kinds, []string{"created", "lost"}) {
		t.Errorf("events %v", kinds)
	}
}

func TestCreateThatIsGivenUpLeavesNothing(t *testing.T) {
	h := newHouse(t)
	ctx, cancel := context.WithCancel(t.Context())
	h.options.Failpoint = nil
	cancel()
	if _, err := h.Create(ctx, alice, daemon.CreateOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("create: %v", err)
	}
	if c := h.Counts(); c != (daemon.Counts{}) {
		t.Errorf("left: %+v", c)
	}
	if rows, err := h.db.Sandboxes(t.Context()); err != nil || len(rows) != 0 {
		t.Errorf("rows %+v, %v", rows, err)
	}
}
