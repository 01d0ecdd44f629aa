package qemu

import (
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
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
