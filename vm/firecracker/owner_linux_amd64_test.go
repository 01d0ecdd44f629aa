package firecracker

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm"
)

// A task is for a child process that owns a machine.
type task struct {
	Options Options
	Config  vm.Config
	// Announce says to say so before the machine is made, not when it runs.
	Announce bool
}

// own is the life of a child process that makes a machine, says so, and waits until
// it is killed.
func own() int {
	var o task
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
	if _, err := d.Create(ctx, o.Config); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// killedOwner runs own until it has said its line, and wait has returned, and then
// kills it as kill -9 does.
func killedOwner(t *testing.T, o task, want string, wait time.Duration) {
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

func ownerSetup(t *testing.T) (*Driver, task) {
	t.Helper()
	o := task{Options: fakeOptions(t, fakeSetup{}), Config: testConfig(t, fakeImage(t))}
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	return testDriver(t, o.Options), o
}

func processes(t *testing.T, d *Driver, id string) []int {
	t.Helper()
	pids, err := rundir.Carriers(apiSocket(filepath.Join(d.keeper.Base, id)))
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

// wantSwept sweeps and fails if anything of machine id is left.
func wantSwept(t *testing.T, d *Driver, id string) {
	t.Helper()
	found, err := d.Sweep(testContext(t), true)
	if err != nil || slices.ContainsFunc(found, func(l vm.Leftover) bool { return !l.Removed }) {
		t.Errorf("sweep: got %+v, %v, want all removed", found, err)
	}
	if pids := processes(t, d, id); len(pids) > 0 {
		t.Errorf("processes are left: %v", pids)
	}
	gone(t, d)
}

// T26, G2: a machine dies with its owner, whatever the guest does.
func TestOwnerKilled(t *testing.T) {
	d, o := ownerSetup(t)
	killedOwner(t, o, "ready", 0)
	if err := wait.Until(testContext(t), func() (bool, error) { return len(processes(t, d, o.Config.ID)) == 0, nil }); err != nil {
		t.Fatalf("%v: processes are left", err)
	}
	wantSwept(t, d, o.Config.ID)
}

// T32: an owner killed at any instant of a creation leaves nothing that a sweep does
// not find.
func TestOwnerKilledCreating(t *testing.T) {
	d, o := ownerSetup(t)
	o.Announce = true
	for i := range 12 {
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
	pids := processes(t, d, o.Config.ID)
	if len(pids) != 2 {
		t.Fatalf("got processes %v, want a warden and Firecracker", pids)
	}
	var all []rundir.Process
	for _, pid := range pids {
		p, err := rundir.Identify(pid)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	// The warden is the elder; with it the other goes.
	if err := unix.Kill(slices.Min(pids), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ended := func() (bool, error) {
		return !slices.ContainsFunc(all, rundir.Process.Alive), nil
	}
	if err := wait.Until(testContext(t), ended); err != nil {
		t.Fatal(err)
	}
	wantSwept(t, d, o.Config.ID)
}
