package qemu

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
)

func newConfig(t testing.TB) vm.Config {
	t.Helper()
	c := testConfig(t)
	c.ID = strings.ToLower(rand.Text())
	return c
}

// private is a directory for a snapshot.
func private(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func create(t testing.TB, d *Driver, c vm.Config) (vm.Machine, *bouvet.AgentClient) {
	t.Helper()
	m, err := d.Create(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	return m, connect(t, m)
}

func restore(t testing.TB, d *Driver, c vm.Config, dir string) (vm.Machine, *bouvet.AgentClient) {
	t.Helper()
	c.ID = strings.ToLower(rand.Text())
	begin := time.Now()
	m, err := d.Restore(testContext(t), c, dir)
	if err != nil {
		t.Fatal(err)
	}
	restored := time.Since(begin)
	a := connect(t, m)
	t.Logf("restored in %v, answered in %v", restored, time.Since(begin))
	return m, a
}

// connect returns a client of m's agent; both end with the test.
func connect(t testing.TB, m vm.Machine) *bouvet.AgentClient {
	t.Helper()
	t.Cleanup(func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	})
	a, err := bouvet.Connect(testContext(t), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
	if err != nil {
		t.Fatalf("cannot connect: %v; %v; console: %s", err, m.Err(), m.Console())
	}
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func save(t testing.TB, m vm.Machine) string {
	t.Helper()
	dir := private(t)
	begin := time.Now()
	if err := m.Snapshot(testContext(t), dir); err != nil {
		t.Fatal(err)
	}
	t.Logf("saved in %v", time.Since(begin))
	return dir
}

// sh runs a command in the guest and returns its output.
func sh(t testing.TB, a *bouvet.AgentClient, script string) string {
	t.Helper()
	r, err := a.Exec(testContext(t), script, nil)
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	return strings.TrimSpace(r.Stdout + r.Stderr)
}

// A machine goes on where it was, also the copy of a copy.
func TestSnapshotOfRestored(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d, c := testDriver(t, testOptions(t, t.TempDir())), newConfig(t)
	m, a := create(t, d, c)
	sh(t, a, "echo first >/root/file")
	first := save(t, m)
	if err := a.Ping(testContext(t)); err != nil {
		t.Fatalf("the original, saved: %v", err)
	}
	m2, a2 := restore(t, d, c, first)
	if got := sh(t, a2, "cat /root/file; echo second >>/root/file"); got != "first" {
		t.Errorf("got %q, want first", got)
	}
	second := save(t, m2)
	m3, a3 := restore(t, d, c, second)
	if got := sh(t, a3, "cat /root/file"); got != "first\nsecond" {
		t.Errorf("got %q, want first and second", got)
	}
	third := save(t, m3)
	_, a4 := restore(t, d, c, third)
	if got := sh(t, a4, "cat /root/file"); got != "first\nsecond" {
		t.Errorf("got %q, want first and second", got)
	}
	if got := sh(t, a, "cat /root/file"); got != "first" {
		t.Errorf("the original: got %q, want first", got)
	}
}

// T30: a machine can be stopped and go on, and be destroyed when it is stopped.
func TestPause(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d := testDriver(t, testOptions(t, t.TempDir()))
	m, a := create(t, d, newConfig(t))
	for range 2 {
		if err := m.Pause(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	used := cpuTime(t, m)
	if err := m.Resume(testContext(t)); err != nil {
		t.Fatal(err)
	}
	_ = used
	if err := a.Ping(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Pause(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Pause": m.Pause(testContext(t)), "Resume": m.Resume(testContext(t)), "Snapshot": m.Snapshot(testContext(t), private(t)),
	} {
		if !errors.Is(err, vm.ErrGone) {
			t.Errorf("%s: got %v, want ErrGone", what, err)
		}
	}
}
