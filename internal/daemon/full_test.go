package daemon_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/store"
)

// T34, T36: on a full disk nothing half made is left, what runs can be ended, and all
// goes on when there is space again.
func TestAFullDiskMakesNoHalfSandboxes(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v; run as root", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	h := newHouse(t, func(h *house) { h.dir = dir })
	sb := h.create(daemon.CreateOptions{})
	paused := h.create(daemon.CreateOptions{})
	if err := h.Pause(t.Context(), alice, paused.ID, true); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	if err := h.Pause(t.Context(), alice, sb.ID, true); err == nil {
		t.Error("a pause without space succeeded")
	}
	h.run(sb.ID, "true")
	made := map[daemon.ID]bool{sb.ID: true}
	var err error
	for range 200 { // the log of the database has some space of its own
		var more daemon.Sandbox
		if more, err = h.Create(t.Context(), alice, daemon.CreateOptions{}); err != nil {
			break
		}
		made[more.ID] = true
	}
	if !errors.Is(err, store.ErrUnwritable) {
		t.Fatalf("create on a full disk: %v", err)
	}
	if n := h.fake.Living(); n != len(made) {
		t.Errorf("%d machines live, %d were promised", n, len(made))
	}
	for id := range made {
		if err := h.Kill(t.Context(), alice, id); err != nil {
			t.Errorf("kill on a full disk: %v", err)
		}
	}
	if n := h.fake.Living(); n != 0 {
		t.Errorf("%d machines live on", n)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	h.run(h.create(daemon.CreateOptions{}).ID, "true")
	h.close(daemon.CloseKills)
	h.open()
	page, err := h.List(t.Context(), alice, daemon.Filter{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != paused.ID {
		t.Errorf("left: %+v, %v", page, err)
	}
	if _, _, err := h.Connect(t.Context(), alice, paused.ID, 0, true); err != nil {
		t.Errorf("the paused one: %v", err)
	}
	h.nothingElse(nil)
}
