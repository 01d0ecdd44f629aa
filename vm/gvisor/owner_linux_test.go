package gvisor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm"
)

// orders are for a child process that owns a machine.
type orders struct {
	Options Options
	Config  vm.Config
	// Ask is sent to the machine once it answers.
	Ask string
	// Announce says to say so before the machine is made.
	Announce bool
	// From is the snapshot that the machine is made of, if any.
	From string
	// Save is where the machine is saved once it has answered, if anywhere. It says
	// "ready" before that.
	Save string
}

// own is the life of a child process that makes a machine, says so, and waits until
// its standard input ends or it is killed.
func own() int {
	var o orders
	if err := json.Unmarshal([]byte(os.Args[1]), &o); err != nil {
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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var m vm.Machine
	if o.From != "" {
		m, err = d.Restore(ctx, o.Config, o.From)
	} else {
		m, err = d.Create(ctx, o.Config)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	answer, err := ask(ctx, m, o.Ask)
	f := d.Features()
	fmt.Printf("ready %q %v limited=%v\n", answer, err, f.MemoryLimit)
	if o.Save != "" {
		if err := m.Snapshot(ctx, o.Save); err != nil {
			fmt.Println("error:", err)
			return 1
		}
		fmt.Println("saved")
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	if err := m.Destroy(context.Background(), 0); err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

// owner is a running child process that owns a machine.
type owner struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	said  string
}

func startOwner(t *testing.T, o orders, attr *syscall.SysProcAttr) *owner {
	t.Helper()
	data, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := testutil.Reexec(t, "owner", string(data))
	cmd.SysProcAttr = attr
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
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("owner said %q, %v", line, err)
	}
	return &owner{cmd: cmd, stdin: stdin, said: strings.TrimSpace(line)}
}

func (o *owner) kill(t *testing.T) {
	t.Helper()
	if err := o.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = o.cmd.Wait()
}

// eventually waits until cond holds.
func eventually(t *testing.T, limit time.Duration, what string, cond func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := wait.Until(ctx, func() (bool, error) { return cond(), nil }); err != nil {
		t.Fatalf("after %v: not %s", limit, what)
	}
}

func sentries(t *testing.T, d *Driver, id string) []int {
	t.Helper()
	pids, err := rundir.Carriers(rootFlag(filepath.Join(d.keeper.Base, id)))
	if err != nil {
		t.Fatal(err)
	}
	return pids
}

func killAll(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			t.Error(err)
		}
	}
}

// G2, 2.11 no. 6: a machine dies with its owner, whatever runs inside, and a sweep
// removes the rest.
func TestOwnerKilled(t *testing.T) {
	for _, tt := range []struct{ name, ask string }{
		{"T26 willing agent", "true"},
		{"hostile agent", "touch /stubborn"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ledgered(t)
			d := testDriver(t)
			c := testConfig(t)
			o := startOwner(t, orders{Options: options(d), Config: c, Ask: tt.ask}, nil)
			if !strings.HasPrefix(o.said, "ready") {
				t.Fatal(o.said)
			}
			if len(sentries(t, d, c.ID)) == 0 {
				t.Fatal("no sentry")
			}
			// Nothing of a living owner is touched.
			if found, err := d.Sweep(testContext(t), true); err != nil || len(found) > 0 {
				t.Fatalf("sweep while the owner lives: got %v, %v", found, err)
			}
			o.kill(t)
			eventually(t, 5*time.Second, "without a sentry", func() bool { return len(sentries(t, d, c.ID)) == 0 })

			looked, err := d.Sweep(testContext(t), false)
			if err != nil || len(looked) == 0 || slices.ContainsFunc(looked, func(l vm.Leftover) bool { return l.Removed }) {
				t.Errorf("sweep without remove: got %+v, %v, want some, none removed", looked, err)
			}
			found, err := d.Sweep(testContext(t), true)
			if err != nil || len(found) == 0 || slices.ContainsFunc(found, func(l vm.Leftover) bool { return !l.Removed }) {
				t.Errorf("sweep: got %+v, %v, want all removed", found, err)
			}
			wantNothing(t, d, c.ID)
		})
	}
}

// T32: an owner killed at any instant of a creation leaves nothing that a sweep
// does not find.
func TestOwnerKilledCreating(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	for i := range 12 {
		c := testConfig(t)
		o := startOwner(t, orders{Options: options(d), Config: c, Announce: true}, nil)
		timer := time.NewTimer(time.Duration(i) * 8 * time.Millisecond)
		<-timer.C // the instants are the point
		o.kill(t)
		sweepAll(t, d, c.ID)
	}
}

// A detached machine outlives its owner and is no leftover until it ends.
func TestDetachedSurvives(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	c := testConfig(t)
	c.Detached = true
	o := startOwner(t, orders{Options: options(d), Config: c, Ask: "true"}, nil)
	if !strings.HasPrefix(o.said, "ready") {
		t.Fatal(o.said)
	}
	o.kill(t)
	pids := sentries(t, d, c.ID)
	if found, err := d.Sweep(testContext(t), true); err != nil || len(found) > 0 {
		t.Errorf("sweep: got %+v, %v, want nothing", found, err)
	}
	if got := sentries(t, d, c.ID); len(got) != 1 || !slices.Equal(got, pids) {
		t.Errorf("sentries after the sweep: got %v, want %v", got, pids)
	}
	killAll(t, pids)
	// A sweep may still see the sentry on its way out.
	eventually(t, 5*time.Second, "swept", func() bool {
		found, err := d.Sweep(testContext(t), true)
		if err != nil {
			t.Error(err)
		}
		return len(found) > 0
	})
	wantNothing(t, d, c.ID)
}

// T34: what cannot be parsed is reported and not deleted; another driver's is left alone.
func TestSweepKeepsStrangers(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	for name, record := range map[string]string{
		"garbage-0001": "{nonsense", "future-00002": `{"version":9,"id":"future-00002","driver":"gvisor"}`,
		"stranger-003": `{"version":1,"id":"stranger-003","driver":"qemu","state":"running","detached":false,"owner":{"pid":1,"start":1,"boot":"x"}}`,
	} {
		dir := filepath.Join(d.keeper.Base, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, data := range map[string]string{"lock": "", "machine.json": record} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	found, err := d.Sweep(testContext(t), true)
	if err != nil || len(found) != 2 {
		t.Errorf("got %+v, %v, want two", found, err)
	}
	for _, l := range found {
		if l.Removed || l.Error == "" {
			t.Errorf("got %+v, want it kept with an error", l)
		}
	}
	if entries, _ := os.ReadDir(d.keeper.Base); len(entries) != 3 {
		t.Errorf("got %d directories, want 3", len(entries))
	}
}

// T34: a record is not believed when it names cgroups of others: a sweep would kill
// what is in them.
func TestSweepKillsNoStrangers(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	if !d.Features().MemoryLimit {
		t.Skip("this host lets us make no cgroups: run as root, or with a delegated cgroup")
	}
	const id = "forged-00001"
	theirs := d.keeper.Cgroups.Dirs("bystander")[0]
	if err := d.keeper.Cgroups.Create("bystander", cgroup.Limits{MemoryBytes: 64 << 20, CPUs: 1, PIDs: 100}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, dir := range d.keeper.Cgroups.Dirs("bystander") {
			if err := d.keeper.Cgroups.Remove(testContext(t), dir); err != nil {
				t.Error(err)
			}
		}
	})
	bystander := exec.CommandContext(t.Context(), "sleep", "1000")
	if err := bystander.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bystander.Process.Kill(); _ = bystander.Wait() })
	if err := d.keeper.Cgroups.Enter("bystander", bystander.Process.Pid); err != nil {
		t.Fatal(err)
	}
	known, err := rundir.Identify(bystander.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	outside := filepath.Join(t.TempDir(), id)
	if err := os.Mkdir(outside, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"another's": theirs, "no cgroup": outside, "not clean": theirs + "/../" + id + "/../bystander", "relative": id,
		"dots": theirs + "/x/../" + id,
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(d.keeper.Base, id)
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			record := fmt.Sprintf(`{"version":1,"id":%q,"driver":"gvisor","state":"running","detached":false,"owner":{"pid":1,"start":1,"boot":"x"},`+
				`"resources":[{"kind":"cgroup","path":%q}]}`, id, path)
			for file, data := range map[string]string{"lock": "", "machine.json": record} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			found, err := d.Sweep(testContext(t), true)
			if err != nil || len(found) != 1 || found[0].Removed || !strings.Contains(found[0].Error, "no cgroup of this machine") {
				t.Errorf("got %+v, %v, want it kept with an error", found, err)
			}
			if !known.Alive() {
				t.Fatal("the bystander is dead")
			}
			if _, err := os.Stat(outside); err != nil {
				t.Error(err)
			}
		})
	}
	for path, want := range map[string]bool{"/sys/fs/cgroup/memory": false, "/sys/fs/cgroup": false, "/": false, d.keeper.Cgroups.Dirs(id)[0]: true} {
		if got := cgroup.Owned(path, filepath.Base(path)); got != want {
			t.Errorf("%s: got %v, want %v", path, got, want)
		}
	}
	if err := os.RemoveAll(filepath.Join(d.keeper.Base, id)); err != nil {
		t.Error(err)
	}
}
