package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

const victim = "daemon-that-is-killed"

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{victim: victimMain})
	os.Exit(m.Run())
}

// A childTB is as much of a test as the fake driver needs in a process that is none.
type childTB struct{ testing.TB }

func (childTB) Cleanup(func()) {}

func (childTB) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// victimMain is a daemon that does a little of everything in the directory of its first
// argument, tells what it has done, and kills itself at the step of its second.
func victimMain() int {
	dir, step := os.Args[1], os.Args[2]
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(time.Minute))
	defer cancel()
	if err := victimLife(ctx, dir, step); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func victimLife(ctx context.Context, dir, step string) error {
	db, err := store.Open(ctx, filepath.Join(dir, "state.db"), true)
	if err != nil {
		return err
	}
	snapshots := filepath.Join(dir, "snapshots")
	if err := os.MkdirAll(snapshots, 0o700); err != nil {
		return err
	}
	snaps, err := snapstore.Open(snapshots)
	if err != nil {
		return err
	}
	driver := vmtest.NewFake(childTB{}, vmtest.FakeOptions{})
	manager, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: driver, Images: images{}, Snapshots: snaps})
	if err != nil {
		return err
	}
	armed := false
	d, err := daemon.New(ctx, daemon.Options{
		Manager: manager, Features: driver.Features(), Store: db, Snapshots: snaps, Images: images{},
		Failpoint: func(s string) {
			if armed && s == step {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {} // it comes
			}
		},
	})
	if err != nil {
		return err
	}
	did := func(what string, id string) { fmt.Println(what, id) }
	create := func(template string) daemon.ID {
		sb, cerr := d.Create(ctx, alice, daemon.CreateOptions{Template: template})
		err = errors.Join(err, cerr)
		did("running", string(sb.ID))
		return sb.ID
	}
	pause := func(id daemon.ID) {
		err = errors.Join(err, d.Pause(ctx, alice, id, true))
		did("paused", string(id))
	}
	pause(create(""))
	stays, err2 := d.Snapshot(ctx, alice, create(""), "stays")
	did("snapshot", stays.ID)
	err = errors.Join(err, err2)
	armed = true
	again := create(stays.ID)
	pause(again)
	did("connecting", string(again))
	_, _, err2 = d.Connect(ctx, alice, again, 0, true)
	err = errors.Join(err, err2)
	did("running", string(again))
	goes, err2 := d.Snapshot(ctx, alice, again, "goes")
	err = errors.Join(err, err2)
	did("snapshot", goes.ID)
	did("deleting", goes.ID)
	err = errors.Join(err, d.DeleteTemplate(ctx, alice, goes.ID))
	forks, err2 := d.Fork(ctx, alice, again, 1, 0)
	err = errors.Join(err, err2)
	did("running", string(forks[0].Sandbox.ID))
	did("killing", string(forks[0].Sandbox.ID))
	return errors.Join(err, d.Kill(ctx, alice, forks[0].Sandbox.ID))
}

// T32: a daemon that is killed at any step of its journal loses nothing that it had
// promised, and leaves nothing behind.
func TestADaemonThatIsKilledLosesNothing(t *testing.T) {
	for _, step := range []string{
		"create:intent", "create:made", "create:running",
		"pause:intent", "pause:saved", "pause:paused", "pause:destroyed", "pause:done",
		"resume:intent", "resume:made", "resume:running",
		"snapshot:intent", "snapshot:saved", "snapshot:ready", "delete:intent",
		"kill:intent", "kill:destroyed", "kill:ended",
	} {
		t.Run(step, func(t *testing.T) {
			dir := t.TempDir()
			told := killedAt(t, dir, step)
			h := newHouse(t, func(h *house) { h.dir = dir })
			for id, what := range told {
				switch what {
				case "snapshot":
					h.create(daemon.CreateOptions{Template: id})
				case "deleting":
				case "paused", "connecting":
					sb, _, err := h.Connect(t.Context(), alice, daemon.ID(id), 0, true)
					if err != nil || sb.State != daemon.StateRunning {
						// It ran for a moment if it was killed right after.
						if what == "paused" || !slices.Contains(h.kinds(daemon.ID(id)), "lost") {
							t.Errorf("sandbox that was %s: %v", what, err)
						}
					}
				default:
					// The machines of the fake end with their process. One that was being
					// paused may be paused by now.
					sb, err := h.Get(t.Context(), alice, daemon.ID(id))
					if err == nil && sb.State != daemon.StatePaused || err != nil && !errors.Is(err, daemon.ErrNotFound) {
						t.Errorf("sandbox that was %s: %+v, %v", what, sb, err)
					}
				}
			}
			h.nothingElse(told)
		})
	}
}

// killedAt runs the victim and returns what it said last of each ID.
func killedAt(t *testing.T, dir, step string) map[string]string {
	t.Helper()
	cmd := testutil.Reexec(t, victim, dir, step)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told := map[string]string{}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		what, id, _ := strings.Cut(lines.Text(), " ")
		told[id] = what
	}
	_ = cmd.Wait()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		t.Fatalf("the daemon was not killed at %s but ended with %v", step, cmd.ProcessState)
	}
	return told
}

// nothingElse checks that what exists is what is known.
func (h *house) nothingElse(told map[string]string) {
	h.t.Helper()
	ctx := h.t.Context()
	machines, err := h.db.Machines(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	if len(machines) != h.fake.Living() {
		h.t.Errorf("%d machines are known, %d live", len(machines), h.fake.Living())
	}
	rows, err := h.db.Snapshots(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	files, err := snapstore.Open(filepath.Join(h.dir, "snapshots"))
	if err != nil {
		h.t.Fatal(err)
	}
	list, err := files.List()
	if err != nil {
		h.t.Fatal(err)
	}
	var known, there []string
	for _, r := range rows {
		known = append(known, r.ID)
	}
	for _, i := range list {
		there = append(there, i.Name)
	}
	slices.Sort(known)
	if !slices.Equal(known, there) {
		h.t.Errorf("snapshots %v are known, there are %v", known, there)
	}
	sandboxes, err := h.db.Sandboxes(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range sandboxes {
		if r.State != store.Running && r.State != store.Paused {
			h.t.Errorf("sandbox %s is %s (it was %s)", r.ID, r.State, told[r.ID])
		}
	}
}
