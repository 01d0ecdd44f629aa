package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

// sweepAll sweeps after an owner's death and fails t unless that leaves nothing.
func sweepAll(t *testing.T, d *Driver, id string) {
	t.Helper()
	// A directory without a lock is another process's in the making while it is young.
	unlocked, err := filepath.Glob(filepath.Join(d.keeper.Base, ".new-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range unlocked {
		past := time.Now().Add(-time.Hour)
		if err := os.Chtimes(dir, past, past); err != nil {
			t.Error(err)
		}
	}
	found, err := d.Sweep(testContext(t), true)
	if err != nil {
		t.Error(err)
	}
	for _, l := range found {
		if !l.Removed {
			t.Errorf("not removed: %+v", l)
		}
	}
	wantNothing(t, d, id)
}

// T26: a copy dies with its owner like the machine it was made of, whatever runs inside.
func TestOwnerOfCloneKilled(t *testing.T) {
	for _, tt := range []struct{ name, ask string }{
		{"willing agent", "true"},
		{"hostile agent", "touch /stubborn"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ledgered(t)
			d := testDriver(t)
			m := create(t, d, savable(t))
			says(t, m, tt.ask, "")
			dir := save(t, m)
			if err := m.Destroy(testContext(t), 0); err != nil {
				t.Fatal(err)
			}
			c := savable(t)
			o := startOwner(t, orders{Options: options(d), Config: c, Ask: "ping", From: dir}, nil)
			if !strings.HasPrefix(o.said, `ready "pong`) {
				t.Fatal(o.said)
			}
			if len(sentries(t, d, c.ID)) == 0 {
				t.Fatal("no sentry")
			}
			o.kill(t)
			eventually(t, 5*time.Second, "without a sentry", func() bool { return len(sentries(t, d, c.ID)) == 0 })
			sweepAll(t, d, c.ID)
		})
	}
}

// A copy of a detached machine may be detached, and outlives its owner, or not.
func TestDetachedClone(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := savable(t)
	c.Detached = true
	m := create(t, d, c)
	dir := save(t, m)
	for _, detached := range []bool{true, false} {
		c := savable(t)
		c.Detached = detached
		o := startOwner(t, orders{Options: options(d), Config: c, Ask: "ping", From: dir}, nil)
		if !strings.HasPrefix(o.said, `ready "pong`) {
			t.Fatal(o.said)
		}
		pids := sentries(t, d, c.ID)
		o.kill(t)
		if !detached {
			eventually(t, 5*time.Second, "without a sentry", func() bool { return len(sentries(t, d, c.ID)) == 0 })
			continue
		}
		found, err := d.Sweep(testContext(t), true)
		if err != nil || slices.ContainsFunc(found, func(l vm.Leftover) bool { return l.Machine == c.ID }) {
			t.Errorf("sweep: got %+v, %v, want nothing of it", found, err)
		}
		if got := sentries(t, d, c.ID); len(got) != 1 || !slices.Equal(got, pids) {
			t.Errorf("sentries after the sweep: got %v, want %v", got, pids)
		}
		killAll(t, pids)
		eventually(t, 5*time.Second, "without a sentry", func() bool { return len(sentries(t, d, c.ID)) == 0 })
	}
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Error(err)
	}
	eventually(t, 5*time.Second, "swept", func() bool {
		_, err := d.Sweep(testContext(t), true)
		return err == nil && len(ledger(t, d)) == 0
	})
}

// T32: an owner killed at any instant of restoring leaves nothing that a sweep does
// not find.
func TestOwnerKilledRestoring(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	m := create(t, d, savable(t))
	dir := save(t, m)
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	for i := range 14 {
		c := savable(t)
		o := startOwner(t, orders{Options: options(d), Config: c, Announce: true, From: dir}, nil)
		timer := time.NewTimer(time.Duration(i) * 12 * time.Millisecond)
		<-timer.C // the instants are the point
		o.kill(t)
		sweepAll(t, d, c.ID)
	}
}

// T32: an owner killed at any instant of saving leaves a snapshot that is whole or
// refused.
func TestOwnerKilledSaving(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	whole := 0
	for i := range 10 {
		c := savable(t)
		dir := t.TempDir()
		o := startOwner(t, orders{Options: options(d), Config: c, Ask: "head -c 8M /dev/urandom >/file", Save: dir}, nil)
		if !strings.HasPrefix(o.said, "ready") {
			t.Fatal(o.said)
		}
		timer := time.NewTimer(time.Duration(i*i) * 3 * time.Millisecond)
		<-timer.C // the instants are the point
		o.kill(t)
		sweepAll(t, d, c.ID)
		r, err := d.Restore(testContext(t), savable(t), dir)
		if err != nil {
			if !errors.Is(err, vm.ErrBadSnapshot) {
				t.Errorf("got %v, want ErrBadSnapshot", err)
			}
			continue
		}
		whole++
		says(t, r, "stat -c %s /file", "8388608")
		if err := r.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d of 10 whole", whole)
	if whole == 10 {
		t.Error("no owner was killed while it saved")
	}
}
