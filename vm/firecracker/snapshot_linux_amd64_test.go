package firecracker

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// saved is a snapshot of a machine of d, with the machine's image.
func saved(t *testing.T, d *Driver, image string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	m := created(t, d, testConfig(t, image))
	if err := m.Snapshot(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// T30: releases that lose their guests are not paused, saved or restored.
func TestPauseIsGated(t *testing.T) {
	for _, version := range []string{"1.16.0", "1.16.1"} {
		o := fakeOptions(t, fakeSetup{Version: version})
		image := fakeImage(t)
		scoped(t, &o)
		d := testDriver(t, o)
		if f := d.Features(); f.Pause || f.Snapshot {
			t.Errorf("%s: got %+v", version, f)
		}
		m := created(t, d, testConfig(t, image))
		_, restore := d.Restore(testContext(t), testConfig(t, image), t.TempDir())
		for what, err := range map[string]error{
			"Pause": m.Pause(testContext(t)), "Resume": m.Resume(testContext(t)), "Snapshot": m.Snapshot(testContext(t), t.TempDir()), "Restore": restore,
		} {
			wantError(t, what, err, "install 1.16.2")
			if !errors.Is(err, vm.ErrUnsupported) {
				t.Errorf("%s %s: got %v, want ErrUnsupported", version, what, err)
			}
		}
	}
}

// The oldest release that is used restores a machine into another jail, where its
// paths are the same, without an override of any.
func TestRestoreOnOldest(t *testing.T) {
	o := fakeOptions(t, fakeSetup{Version: Oldest.String()})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	dir := saved(t, d, image)
	m, err := d.Restore(testContext(t), testConfig(t, image), dir)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := m.Dial(testContext(t), 52)
	if err == nil {
		_ = conn.Close()
	}
	if err := errors.Join(err, m.Destroy(testContext(t), 0)); err != nil {
		t.Error(err)
	}
}

// T29, T31: a load that Firecracker refuses is told and leaves nothing; files that a
// machine's user cannot read are told before.
func TestRestoreFails(t *testing.T) {
	o := fakeOptions(t, fakeSetup{Fault: "refuses", At: pathSnapshotLoad})
	image := fakeImage(t)
	scoped(t, &o)
	d := testDriver(t, o)
	dir := saved(t, d, image)
	_, err := d.Restore(testContext(t), testConfig(t, image), dir)
	wantError(t, "Restore", err, "this is not to be")
	memory := filepath.Join(dir, memoryFile)
	if err := os.Chmod(memory, 0o400); err != nil {
		t.Fatal(err)
	}
	if _, err = d.Restore(testContext(t), testConfig(t, image), dir); !errors.Is(err, vm.ErrBadSnapshot) {
		t.Errorf("got %v, want ErrBadSnapshot", err)
	}
	wantError(t, "Restore", err, "chmod a+r")
}

// T29: a snapshot that fails leaves an empty directory and a machine that runs.
func TestSnapshotFails(t *testing.T) {
	o := fakeOptions(t, fakeSetup{Fault: "refuses", At: pathSnapshotCreate})
	image := fakeImage(t)
	scoped(t, &o)
	m := created(t, testDriver(t, o), testConfig(t, image))
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	wantError(t, "Snapshot", m.Snapshot(testContext(t), dir), "this is not to be")
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left %v, %v", entries, err)
	}
	conn, err := m.Dial(testContext(t), 52)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if _, err := snapshot.Read(dir); err == nil {
		t.Error("there is a manifest")
	}
}
