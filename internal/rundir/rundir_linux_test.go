package rundir

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{"owner": own})
	os.Exit(m.Run())
}

// own creates a directory below its working directory and stays until it is killed.
func own() int {
	d, err := Create("machines", "machine-0001", Record{Driver: "test", State: StateCreating})
	if err == nil {
		err = d.Update(func(r *Record) { r.Add(Resource{Kind: KindCgroup, Path: "/x"}) })
	}
	fmt.Println("created", err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// child starts an owner that has created machine-0001 in base.
func child(t *testing.T, base string) *exec.Cmd {
	t.Helper()
	cmd := testutil.Reexec(t, "owner")
	cmd.Dir = filepath.Dir(base)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
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
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "created <nil>\n" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return cmd
}

func base(t *testing.T) string { return filepath.Join(t.TempDir(), "machines") }

func mustCreate(t *testing.T, base, id string) *Dir {
	t.Helper()
	d, err := Create(base, id, Record{Driver: "test", State: StateCreating})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Remove() })
	return d
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var n []string
	for _, e := range entries {
		n = append(n, e.Name())
	}
	return n
}

func TestLife(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	b := base(t)
	d := mustCreate(t, b, "machine-0001")
	if _, err := Create(b, "machine-0001", Record{}); !errors.Is(err, ErrExists) {
		t.Errorf("second Create: got %v, want ErrExists", err)
	}
	if info, err := os.Stat(d.Path()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode: got %v, %v, want 0700", info.Mode(), err)
	}
	if err := d.Update(func(r *Record) {
		r.State = StateRunning
		r.Add(Resource{KindMount, "/m"}, Resource{KindMount, "/m"})
	}); err != nil {
		t.Fatal(err)
	}
	got, err := readRecord(d.Path())
	if err != nil || got.State != StateRunning || len(got.Resources) != 1 || got.Owner.PID != os.Getpid() || !got.Owner.Alive() {
		t.Errorf("record: got %+v, %v", got, err)
	}
	if found, err := Sweep(t.Context(), b, true); err != nil || len(found) != 0 {
		t.Errorf("sweep of the living: got %v, %v, want none", found, err)
	}
	if err := os.WriteFile(d.Join("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Remove(); err != nil {
			t.Errorf("Remove: %v", err)
		}
	}
	if err := d.Update(func(*Record) {}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Update after Remove: got %v, want ErrClosed", err)
	}
	if got := names(t, b); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// T26, T32: the lock goes with the owner, however that dies.
func TestKilledOwner(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	b := base(t)
	cmd := child(t, b)
	if found, err := Sweep(t.Context(), b, true); err != nil || len(found) != 0 {
		t.Fatalf("while the owner lives: got %v, %v, want none", found, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	found, err := Sweep(t.Context(), b, true)
	if err != nil || len(found) != 1 || found[0].Err != nil {
		t.Fatalf("after kill -9: got %+v, %v, want one", found, err)
	}
	d := found[0].Dir
	if r := d.Record(); r.ID != "machine-0001" || r.Owner.Alive() || len(r.Resources) != 1 {
		t.Errorf("record: got %+v", r)
	}
	if again, err := Sweep(t.Context(), b, true); err != nil || len(again) != 0 {
		t.Errorf("a second sweeper: got %v, %v, want none", again, err)
	}
	if err := d.Remove(); err != nil {
		t.Error(err)
	}
	if got := names(t, b); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// A child that the owner had forked may hold the lock a little longer than the
// owner lives; another process that cleans up holds it for long.
func TestLockOutlivesOwner(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	b := base(t)
	cmd := child(t, b)
	held, err := os.Open(filepath.Join(b, "machine-0001", lockName))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if err := flock(held); err != nil {
		t.Fatal(err)
	}
	if found, err := Sweep(t.Context(), b, true); err != nil || len(found) != 0 {
		t.Errorf("while another holds the lock: got %v, %v, want none", found, err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = held.Close() })
	found, err := Sweep(t.Context(), b, true)
	if err != nil || len(found) != 1 {
		t.Fatalf("when it is let go: got %v, %v, want one", found, err)
	}
	if err := found[0].Dir.Remove(); err != nil {
		t.Error(err)
	}
}

// Creators and sweepers at once: no directory of a living owner is ever taken, none is
// lost, none is left.
func TestSweepersAndCreators(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	b := base(t)
	stop := make(chan struct{})
	var sweepers, creators sync.WaitGroup
	for range 3 {
		sweepers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				found, err := Sweep(t.Context(), b, true)
				if err != nil {
					t.Error(err)
				}
				for _, a := range found {
					t.Errorf("took %s, %v, of a living owner", a.Path, a.Err)
					if a.Dir != nil {
						_ = a.Dir.Close()
					}
				}
			}
		})
	}
	for w := range 4 {
		creators.Go(func() {
			for i := range 100 {
				d, err := Create(b, fmt.Sprintf("machine-%d-%03d", w, i), Record{Driver: "test"})
				if err != nil {
					t.Error(err)
					return
				}
				if err := d.Update(func(r *Record) { r.State = StateDestroying }); err != nil {
					t.Error(err)
				}
				if err := d.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	creators.Wait()
	close(stop)
	sweepers.Wait()
	if got := names(t, b); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// T39: one winner of many creators.
func TestOneWinner(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	b := base(t)
	var mu sync.Mutex
	var won []*Dir
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			d, err := Create(b, "machine-0001", Record{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won = append(won, d)
			} else if !errors.Is(err, ErrExists) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("got %d winners, want 1", len(won))
	}
	if err := won[0].Remove(); err != nil {
		t.Error(err)
	}
	if got := names(t, b); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// T34: what cannot be parsed is reported and kept.
func TestUnreadable(t *testing.T) {
	for name, record := range map[string]string{
		"empty": "", "garbage": "{", "other version": `{"version":2,"id":"ID"}`, "other id": `{"version":1,"id":"machine-0002"}`,
		"unknown field": `{"version":1,"id":"ID","surprise":1}`, "trailing": `{"version":1,"id":"ID"}{}`,
		"huge": strings.Repeat(" ", maxRecord+1),
	} {
		t.Run(name, func(t *testing.T) {
			b := base(t)
			d := mustCreate(t, b, "machine-0001")
			path := d.Path()
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(path, recordName), []byte(strings.ReplaceAll(record, "ID", "machine-0001")), 0o600); err != nil {
				t.Fatal(err)
			}
			found, err := Sweep(t.Context(), b, true)
			if err != nil || len(found) != 1 || !errors.Is(found[0].Err, ErrUnreadable) {
				t.Fatalf("got %+v, %v, want ErrUnreadable", found, err)
			}
			if err := found[0].Dir.Close(); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(path); err != nil {
				t.Error("deleted:", err)
			}
		})
	}
}

// T34, T44: a record that is no file holds nobody up.
func TestRecordIsNoFile(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"FIFO":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			b := base(t)
			dir := filepath.Join(b, "machine-0001")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(filepath.Join(dir, lockName), nil, 0o600), put(filepath.Join(dir, recordName))); err != nil {
				t.Fatal(err)
			}
			found, err := Sweep(t.Context(), b, true)
			if err != nil || len(found) != 1 || !errors.Is(found[0].Err, ErrUnreadable) {
				t.Fatalf("got %+v, %v, want ErrUnreadable", found, err)
			}
			if err := found[0].Dir.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What a crash leaves of a creation or a removal goes with the next sweep; what may
// be in the making stays.
func TestRemains(t *testing.T) {
	b := base(t)
	old := time.Now().Add(-2 * unfinishedAge)
	for _, tt := range []struct {
		name   string
		lock   bool
		old    bool
		remain bool
	}{
		{".new-locked", true, false, false},
		{".old-locked", true, false, false},
		{".new-young", false, false, true},
		{".new-old", false, true, false},
	} {
		dir := filepath.Join(b, tt.name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if tt.lock {
			if err := os.WriteFile(filepath.Join(dir, lockName), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if tt.old {
			if err := os.Chtimes(dir, old, old); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Sweep(t.Context(), b, false); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("%s: removed without being asked: %v", tt.name, err)
		}
		if found, err := Sweep(t.Context(), b, true); err != nil || len(found) != 0 {
			t.Errorf("%s: got %v, %v", tt.name, found, err)
		}
		if _, err := os.Stat(dir); (err == nil) != tt.remain {
			t.Errorf("%s: remains %v, want %v", tt.name, err == nil, tt.remain)
		}
	}
}

// T44: names and places that are not ours are refused.
func TestRefused(t *testing.T) {
	for _, id := range []string{"", ".", "..", "a/b", "/etc", ".hidden"} {
		if _, err := Create(base(t), id, Record{}); err == nil {
			t.Errorf("id %q: accepted", id)
		}
	}
	t.Run("others may write", func(t *testing.T) {
		b := t.TempDir()
		if err := os.Chmod(b, 0o777); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(b, "machine-0001", Record{}); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("of another user", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can give a directory away: run as root")
		}
		b := t.TempDir()
		if err := os.Chown(b, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(b, "machine-0001", Record{}); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("symbolic link", func(t *testing.T) {
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(t.TempDir(), link); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(link, "machine-0001", Record{}); err == nil {
			t.Error("accepted")
		}
	})
	t.Run("name taken by a stranger", func(t *testing.T) {
		b := base(t)
		if err := os.MkdirAll(filepath.Join(b, "machine-0001"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := Create(b, "machine-0001", Record{}); !errors.Is(err, ErrExists) {
			t.Errorf("got %v, want ErrExists", err)
		}
		if got := names(t, b); len(got) != 1 {
			t.Errorf("left: %v", got)
		}
	})
}

// T35: a number that is used again is not the same process.
func TestProcess(t *testing.T) {
	self, err := Identify(os.Getpid())
	if err != nil || !self.Alive() {
		t.Fatalf("self: got %+v, %v", self, err)
	}
	other := self
	other.Start++
	rebooted := self
	rebooted.Boot = "00000000-0000-0000-0000-000000000000"
	for name, p := range map[string]Process{"other start": other, "other boot": rebooted, "zero": {}} {
		if p.Alive() {
			t.Errorf("%s: alive", name)
		}
	}
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Identify(cmd.Process.Pid)
	if err != nil || !p.Alive() {
		t.Errorf("child: got %+v, %v", p, err)
	}
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
	if p.Alive() {
		t.Error("alive after the end")
	}
	if _, err := Identify(1 << 30); err == nil {
		t.Error("identified a process that does not exist")
	}
}
