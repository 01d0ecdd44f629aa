package daemon_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm/gvisor"
	"github.com/bouvet-run/bouvet/vm/qemu"
)

const victim = "daemon-with-real-sandboxes"

func TestMain(m *testing.M) {
	local.Dispatch()
	testutil.Personas(map[string]func() int{victim: victimMain})
	os.Exit(m.Run())
}

var alice = daemon.Owner{ID: "alice", Name: "Alice"}

func mkdir(t *testing.T, elem ...string) string {
	t.Helper()
	dir := filepath.Join(elem...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// helper is a program that can become a sandbox's kernel.
func helper(t testing.TB) string {
	t.Helper()
	if _, err := local.Driver(t.Context(), local.Options{Driver: gvisor.Name}); err == nil && !raceEnabled {
		return ""
	}
	for _, path := range []string{os.Getenv("BOUVET_HELPER"), "../../bin/bouvet"} {
		if path, err := filepath.Abs(path); err == nil {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path
			}
		}
	}
	t.Skip("this test binary cannot become a sandbox's kernel: run make build, name a bouvet binary in BOUVET_HELPER, or test with CGO_ENABLED=0")
	return ""
}

// openReal starts a Service on a driver with its state in dir and the images of the default
// state directory.
func openReal(ctx context.Context, driverName, dir, exe string) (d *daemon.Service, closer func() error, err error) {
	db, err := store.Open(ctx, filepath.Join(dir, "state.db"), true)
	if err != nil {
		return nil, nil, err
	}
	o := local.Options{StateDir: dir, Driver: driverName, Exe: exe}
	if driverName == qemu.Name {
		o.StateDir = "" // where the kernels are
	}
	driver, err := local.Driver(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	images, err := local.Store(local.Options{})
	if err != nil {
		return nil, nil, err
	}
	saved := filepath.Join(dir, "saved")
	if err := os.MkdirAll(saved, 0o700); err != nil {
		return nil, nil, err
	}
	snaps, err := snapstore.Open(saved)
	if err != nil {
		return nil, nil, err
	}
	m, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: driver, Images: local.Images(images), Snapshots: snaps, Defaults: local.Defaults(ctx, driver, bouvet.Config{}), MaxSandboxes: -1})
	if err != nil {
		return nil, nil, err
	}
	d, err = daemon.New(ctx, daemon.Options{
		Manager: m, Features: driver.Features(), Store: db, Snapshots: snaps, Images: images, Pins: local.Images(images), MemoryMiB: 128,
		Sweep: func(ctx context.Context) error { _, err := local.Sweep(ctx, o, true); return err },
	})
	return d, db.Close, err
}

// victimMain creates sandboxes until it is killed.
func victimMain() int {
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(time.Minute))
	defer cancel()
	if err := victimLife(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 1
}

func victimLife(ctx context.Context, dir, exe string) error {
	d, _, err := openReal(ctx, gvisor.Name, dir, exe)
	if err != nil {
		return err
	}
	sb, err := d.Create(ctx, alice, daemon.CreateOptions{AutoResume: true})
	if err != nil {
		return err
	}
	u, err := d.Use(ctx, sb.ID)
	if err != nil {
		return err
	}
	if err := u.Machine.WriteFile(ctx, "/root/file", "kept\n"); err != nil {
		return err
	}
	if err := d.Pause(ctx, alice, sb.ID, true); err != nil {
		return err
	}
	fmt.Println("paused", sb.ID)
	var all sync.WaitGroup
	for range 30 {
		all.Go(func() {
			if sb, err := d.Create(ctx, alice, daemon.CreateOptions{}); err == nil {
				fmt.Println("running", sb.ID)
			}
		})
	}
	all.Wait()
	return errors.New("nobody killed it")
}

// T32: kill -9 during 30 concurrent creations of real sandboxes. The next daemon has the
// paused one with its files, and nothing of the others is left.
func TestARealDaemonThatIsKilled(t *testing.T) {
	imagetest.Default(t)
	exe := helper(t)
	dir := t.TempDir()
	testutil.Ledger(t, testutil.Scope{Dirs: []string{mkdir(t, dir, "machines")}})
	cmd := testutil.Reexec(t, victim, dir, exe)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var paused daemon.ID
	running := 0
	for lines := bufio.NewScanner(out); running < 3 && lines.Scan(); {
		switch what, id, _ := strings.Cut(lines.Text(), " "); what {
		case "paused":
			paused = daemon.ID(id)
		case "running":
			running++
		}
	}
	if running < 3 {
		t.Fatal("the daemon failed by itself")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()

	began := time.Now()
	d, closer, err := openReal(t.Context(), gvisor.Name, dir, exe)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the next daemon was ready after %v", time.Since(began))
	// What was killed before it had a lock is left alone for a minute.
	young, err := filepath.Glob(filepath.Join(dir, "machines", ".new-*"))
	for _, path := range young {
		long := time.Now().Add(-2 * time.Minute)
		err = errors.Join(err, os.Chtimes(path, long, long))
	}
	if err != nil {
		t.Error(err)
	}
	if _, err := local.Sweep(t.Context(), local.Options{StateDir: dir, Driver: gvisor.Name}, true); err != nil {
		t.Error(err)
	}
	if left, err := local.Sweep(t.Context(), local.Options{StateDir: dir, Driver: gvisor.Name}, false); err != nil || len(left) != 0 {
		t.Errorf("left of the machines: %+v, %v", left, err)
	}
	page, err := d.List(t.Context(), alice, daemon.Filter{})
	if err != nil || len(page.Sandboxes) != 1 || page.Sandboxes[0].ID != paused {
		t.Errorf("sandboxes %+v, %v", page, err)
	}
	u, err := d.Use(t.Context(), paused)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := u.Machine.ReadFile(t.Context(), "/root/file"); err != nil || text != "kept\n" {
		t.Errorf("its file holds %q, %v", text, err)
	}
	if err := errors.Join(d.Close(t.Context(), daemon.CloseKills), closer()); err != nil {
		t.Error(err)
	}
}

// The life of real sandboxes: paused and resumed, saved, copied, created again of what was
// saved, ended. A detached command goes on through it.
func TestARealLife(t *testing.T) {
	imagetest.Default(t)
	exe := helper(t)
	for _, driver := range []string{gvisor.Name, qemu.Name} {
		t.Run(driver, func(t *testing.T) {
			dir := t.TempDir()
			d, closer, err := openReal(t.Context(), driver, dir, exe)
			if driver == qemu.Name && err != nil {
				t.Skipf("QEMU is not ready: %v: run `apt-get install qemu-system-x86`, `bouvet kernel fetch` and `make build`", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := errors.Join(d.Close(t.Context(), daemon.CloseKills), closer()); err != nil {
					t.Error(err)
				}
			}()
			realLife(t, d)
		})
	}
}

func realLife(t *testing.T, d *daemon.Service) {
	ctx := t.Context()
	sb, err := d.Create(ctx, alice, daemon.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	say := func(id daemon.ID, want string) {
		t.Helper()
		u, err := d.Use(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		out, err := u.Machine.Command(ctx, "sh", "-c", "cat /root/file; pgrep -c sleep").Output() //nolint:contextcheck // it is the command's own.
		if err != nil || string(out) != want {
			t.Errorf("%s says %q, %v", id, out, err)
		}
	}
	u, err := d.Use(ctx, sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.Machine.WriteFile(ctx, "/root/file", "kept\n"); err != nil {
		t.Fatal(err)
	}
	sleep := u.Machine.Command(ctx, "sleep", "1000")
	sleep.Detach = true
	if err := errors.Join(sleep.Start(), sleep.Release()); err != nil {
		t.Fatal(err)
	}
	if err := d.Pause(ctx, alice, sb.ID, true); errors.Is(err, daemon.ErrUnsupported) {
		t.Skipf("the driver cannot save sandboxes on this host: %v: run `bouvet doctor`", err)
	} else if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, resumed, err := d.Connect(ctx, alice, sb.ID, 0, true); err != nil || !resumed {
		t.Fatalf("connect: %v, %v", resumed, err)
	}
	t.Logf("resumed in %v", time.Since(began))
	say(sb.ID, "kept\n1\n")
	sn, err := d.Snapshot(ctx, alice, sb.ID, "name")
	if err != nil {
		t.Fatal(err)
	}
	forks, err := d.Fork(ctx, alice, sb.ID, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range forks {
		if f.Err != nil {
			t.Fatal(f.Err)
		}
		say(f.Sandbox.ID, "kept\n1\n")
	}
	if err := d.Kill(ctx, alice, sb.ID); err != nil {
		t.Error(err)
	}
	made, err := d.Create(ctx, alice, daemon.CreateOptions{Template: "name"})
	if err != nil {
		t.Fatal(err)
	}
	say(made.ID, "kept\n1\n")
	if err := d.Pause(ctx, alice, made.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := d.DeleteTemplate(ctx, alice, sn.ID); err != nil {
		t.Error(err)
	}
	if _, _, err := d.Connect(ctx, alice, made.ID, 0, true); err != nil {
		t.Fatal(err)
	}
	say(made.ID, "kept\n1\n")
}
