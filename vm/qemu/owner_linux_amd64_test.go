package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm"
)

// orders are for a child process that owns a machine.
type orders struct {
	Options Options
	Config  vm.Config
	// Announce says to say so before the machine is made, not when it runs.
	Announce bool
	// From is a snapshot that the machine is made of, if it is not empty.
	From string
	// Into is where the machine is saved, as soon as its creation was announced.
	Into string
}

// own is the life of a child process that makes a machine, says so, and waits until
// it is killed.
func own() int {
	var o orders
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		panic(err)
	}
	if o.Announce {
		fmt.Println("creating")
	}
	d, err := New(o.Options)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(60*time.Second))
	defer cancel()
	var m vm.Machine
	if o.From != "" {
		m, err = d.Restore(ctx, o.Config, o.From)
	} else {
		m, err = d.Create(ctx, o.Config)
	}
	if err == nil {
		fmt.Println("ready")
	}
	if err == nil && o.Into != "" {
		err = m.Snapshot(ctx, o.Into)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// killedOwner runs own until it has said its line, and wait has returned, and then
// kills it as kill -9 does.
func killedOwner(t *testing.T, o orders, want string, wait time.Duration) {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := testutil.Reexec(t, "owner")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if _, err := stdin.Write(data); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("owner: got %q, %v, want %s", line, err, want)
	}
	timer := time.NewTimer(wait) // the instant is the point
	<-timer.C
}

func machines(t *testing.T, d *Driver, id string) []int {
	t.Helper()
	pids, err := rundir.Carriers(nameArg(filepath.Join(d.keeper.Base, id)))
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	if err := wait.Until(testContext(t), func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatalf("%v: not %s", err, what)
	}
}

func ownerSetup(t *testing.T) (*Driver, orders) {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	o := orders{Options: testOptions(t, t.TempDir())}
	o.Config = vm.Config{ID: fmt.Sprintf("owned-%d", time.Now().UnixNano()), Image: imagetest.Default(t), MemoryMiB: 128, VCPUs: 1}
	return testDriver(t, o.Options), o
}

// wantSwept sweeps and fails if anything of machine id is left.
func wantSwept(t *testing.T, d *Driver, id string) {
	t.Helper()
	found, err := d.Sweep(testContext(t), true)
	if err != nil || slices.ContainsFunc(found, func(l vm.Leftover) bool { return !l.Removed }) {
		t.Errorf("sweep: got %+v, %v, want all removed", found, err)
	}
	if pids := machines(t, d, id); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	if entries, _ := os.ReadDir(d.keeper.Base); len(entries) > 0 {
		t.Errorf("directories are left: %v", entries)
	}
}

// T26, G2: a machine dies with its owner, whatever the guest does.
func TestOwnerKilled(t *testing.T) {
	d, o := ownerSetup(t)
	killedOwner(t, o, "ready", 0)
	eventually(t, "without a QEMU", func() bool { return len(machines(t, d, o.Config.ID)) == 0 })
	wantSwept(t, d, o.Config.ID)
}

// T32: an owner killed at any instant of a creation leaves nothing that a sweep
// does not find.
func TestOwnerKilledCreating(t *testing.T) {
	d, o := ownerSetup(t)
	o.Announce = true
	for i := range 12 {
		killedOwner(t, o, "creating", time.Duration(i)*10*time.Millisecond)
		wantSwept(t, d, o.Config.ID)
	}
}

// T26, T32: an owner killed at any instant of a snapshot leaves no machine, and no
// snapshot that is not whole; one killed while it restores leaves nothing that a
// sweep does not find.
func TestOwnerKilledSnapshot(t *testing.T) {
	d, o := ownerSetup(t)
	o.Config.ImageDigest = "sha256:" + strings.Repeat("1", 64)
	whole := 0
	for i := range 8 {
		o.Into = private(t)
		killedOwner(t, o, "ready", time.Duration(i)*20*time.Millisecond)
		eventually(t, "without a QEMU", func() bool { return len(machines(t, d, o.Config.ID)) == 0 })
		wantSwept(t, d, o.Config.ID)
		_, err := snapshot.Open(testContext(t), o.Into)
		if err == nil {
			whole++
		} else if !errors.Is(err, vm.ErrBadSnapshot) {
			t.Errorf("what is left: got %v, want a snapshot or ErrBadSnapshot", err)
		}
	}
	t.Logf("%d of 8 snapshots are whole", whole)
	m, _ := create(t, d, o.Config)
	o.From, o.Into = save(t, m), ""
	if err := m.Destroy(testContext(t), 0); err != nil {
		t.Fatal(err)
	}
	o.Announce = true
	for i := range 8 {
		killedOwner(t, o, "creating", time.Duration(i)*15*time.Millisecond)
		wantSwept(t, d, o.Config.ID)
	}
}

// A detached machine outlives its owner and is no leftover until it ends.
func TestDetachedSurvives(t *testing.T) {
	d, o := ownerSetup(t)
	o.Config.Detached = true
	killedOwner(t, o, "ready", 0)
	if found, err := d.Sweep(testContext(t), true); err != nil || len(found) > 0 {
		t.Errorf("sweep: got %+v, %v, want nothing", found, err)
	}
	pids := machines(t, d, o.Config.ID)
	if len(pids) != 1 {
		t.Fatalf("got QEMUs %v, want one", pids)
	}
	main, err := rundir.Identify(pids[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// A process that ends loses its arguments first and its life later; a sweep asks for its life.
	eventually(t, "without a QEMU", func() bool { return !main.Alive() })
	wantSwept(t, d, o.Config.ID)
}
