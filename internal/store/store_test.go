package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T, path string) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func fresh(t *testing.T) *Store { return open(t, filepath.Join(t.TempDir(), "state #1?.db")) }

func TestRowsComeBackAsTheyWere(t *testing.T) {
	s, ctx := fresh(t), t.Context()
	now := time.Unix(0, time.Now().UnixNano())
	sb := Sandbox{ID: "i1", Owner: "alice", State: Creating, StartedAt: now, EndAt: now.Add(time.Minute), Spec: []byte(`{"a":1}`)}
	m := Machine{ID: "m1", Sandbox: "i1", Base: "s0", Made: now}
	sn := Snapshot{ID: "s1", Owner: "alice", Sandbox: "i1", Kind: KindUser, State: Saving, CreatedAt: now, Spec: []byte(`{}`)}
	apply := func(c Change) {
		t.Helper()
		if err := s.Apply(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
	apply(Change{Insert: &sb, AddMachine: &m, AddSnapshot: &sn})
	sb.State, sb.Saved, sb.Base = Paused, "s1", "s0"
	sn.State, sn.Names = Ready, []string{"one:default", "two:default"}
	apply(Change{Update: &sb, SetSnapshot: &sn, Names: sn.Names, Durable: true})
	boxes, err := s.Sandboxes(ctx)
	if diff := cmp.Diff([]Sandbox{sb}, boxes); err != nil || diff != "" {
		t.Errorf("sandboxes: %v\n%s", err, diff)
	}
	machines, err := s.Machines(ctx)
	if diff := cmp.Diff([]Machine{m}, machines); err != nil || diff != "" {
		t.Errorf("machines: %v\n%s", err, diff)
	}
	snaps, err := s.Snapshots(ctx)
	if diff := cmp.Diff([]Snapshot{sn}, snaps); err != nil || diff != "" {
		t.Errorf("snapshots: %v\n%s", err, diff)
	}
	other := sn
	other.ID = "s2"
	apply(Change{AddSnapshot: &other})
	apply(Change{SetSnapshot: &other, Names: []string{"two:default"}})
	if snaps, err = s.Snapshots(ctx); err != nil || len(snaps) != 2 || len(snaps[0].Names) != 1 || len(snaps[1].Names) != 1 {
		t.Errorf("a name was not taken over: %+v, %v", snaps, err)
	}
	sb.State, sb.Ended = Ended, now
	apply(Change{Update: &sb, DropMachine: "m1", DropSnapshot: "s1"})
	if boxes, err = s.Sandboxes(ctx); err != nil || len(boxes) != 0 {
		t.Errorf("an ended one is listed: %+v, %v", boxes, err)
	}
	if owner, err := s.Owner(ctx, "i1"); err != nil || owner != "alice" {
		t.Errorf("owner of an ended one: %q, %v", owner, err)
	}
	if err := s.Apply(ctx, Change{Insert: &sb}); !errors.Is(err, ErrExists) {
		t.Errorf("an ID is used again: %v", err)
	}
	if err := s.Purge(ctx, now.Add(time.Second), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Owner(ctx, "i1"); !errors.Is(err, ErrNotFound) {
		t.Errorf("owner of a purged one: %v", err)
	}
}

func TestAChangeIsMadeWholeOrNotAtAll(t *testing.T) {
	s, ctx := fresh(t), t.Context()
	sb := Sandbox{ID: "i1", Owner: "a", State: Creating, Spec: []byte("{}")}
	err := s.Apply(ctx, Change{Insert: &sb, Update: &Sandbox{ID: "i2", Spec: []byte("{}")}})
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("update of a missing row: %v", err)
	}
	if err := s.Apply(ctx, Change{Insert: &sb, AddMachine: &Machine{ID: strings.Repeat("x", maxID+1)}}); !errors.Is(err, ErrTooLong) {
		t.Errorf("a long ID: %v", err)
	}
	if boxes, err := s.Sandboxes(ctx); err != nil || len(boxes) != 0 {
		t.Errorf("half a change: %+v, %v", boxes, err)
	}
}

func TestEventsAreBounded(t *testing.T) {
	s, ctx := fresh(t), t.Context()
	for i := range 3 {
		var batch []Event
		for j := range MaxEvents/2 + 1 {
			batch = append(batch, Event{Time: time.Now(), Sandbox: "i1", Kind: "exec", By: "a", Detail: fmt.Sprintf("%d %d %s", i, j, strings.Repeat("ä", maxText))})
		}
		if err := s.AddEvents(ctx, batch); err != nil {
			t.Fatal(err)
		}
	}
	all, err := s.Events(ctx, "i1", 0, 10*MaxEvents)
	if err != nil || len(all) != MaxEvents {
		t.Fatalf("%d events, %v", len(all), err)
	}
	last := all[len(all)-1]
	if !strings.HasPrefix(last.Detail, "2 500 ") || len(last.Detail) > maxText+2 {
		t.Errorf("the last is %.20q of %d bytes", last.Detail, len(last.Detail))
	}
	if after, err := s.Events(ctx, "i1", last.Seq-1, 10); err != nil || len(after) != 1 || after[0].Seq != last.Seq {
		t.Errorf("after: %+v, %v", after, err)
	}
}

func TestKeys(t *testing.T) {
	s, ctx := fresh(t), t.Context()
	k := Key{ID: "k1", Hash: []byte("hash"), Prefix: "e2b_1", Name: "n", Owner: "o", Created: time.Unix(0, 5)}
	if err := s.AddKey(ctx, k); err != nil {
		t.Fatal(err)
	}
	if err := s.KeyUsed(ctx, "k1", time.Unix(0, 7)); err != nil {
		t.Fatal(err)
	}
	k.Used = time.Unix(0, 7)
	if got, err := s.KeyOf(ctx, []byte("hash")); err != nil || cmp.Diff(k, got) != "" {
		t.Errorf("got %+v, %v", got, err)
	}
	for i := range 2 {
		if err := s.RevokeKey(ctx, "k1", time.Unix(0, int64(8+i))); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := s.Keys(ctx); err != nil || len(all) != 1 || !all[0].Revoked.Equal(time.Unix(0, 8)) {
		t.Errorf("keys %+v, %v", all, err)
	}
	if err := s.RevokeKey(ctx, "k2", time.Now()); !errors.Is(err, ErrNotFound) {
		t.Errorf("revoke of no key: %v", err)
	}
	if _, err := s.KeyOf(ctx, []byte("x")); !errors.Is(err, ErrNotFound) {
		t.Errorf("no such key: %v", err)
	}
}

// T33 and T34: what is not understood is refused, and left as it is.
func TestWhatIsNotUnderstoodIsLeftAlone(t *testing.T) {
	ours := func(t *testing.T, path string, queries ...string) {
		t.Helper()
		s, err := Open(t.Context(), path, true)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 200 {
			if err := s.SetMeta(t.Context(), fmt.Sprint("key", i), strings.Repeat("v", 500)); err != nil {
				t.Fatal(err)
			}
		}
		for _, q := range queries {
			if _, err := s.rw.ExecContext(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	damage := func(t *testing.T, path string, at int64, b []byte) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name string
		make func(t *testing.T, path string)
		want error
	}{
		{"text", func(t *testing.T, path string) { write(t, path, "hello, this is no database") }, ErrForeign},
		{"a short text", func(t *testing.T, path string) { write(t, path, "hello") }, ErrForeign},
		{"another program's", func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = db.Close() }()
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE theirs (x)"); err != nil {
				t.Fatal(err)
			}
		}, ErrForeign},
		{"a newer version's", func(t *testing.T, path string) { ours(t, path, "PRAGMA user_version=99") }, ErrVersion},
		{"garbage within", func(t *testing.T, path string) {
			ours(t, path)
			damage(t, path, 4096*4, []byte(strings.Repeat("\xff", 4096*6)))
		}, ErrCorrupt},
		{"cut short", func(t *testing.T, path string) {
			ours(t, path)
			if err := os.Truncate(path, 4096*9); err != nil {
				t.Fatal(err)
			}
		}, ErrCorrupt},
		{"a link", func(t *testing.T, path string) {
			ours(t, path+".real")
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			tt.make(t, path)
			before := read(t, path)
			s, err := Open(t.Context(), path, true)
			if err == nil {
				t.Fatal("it was opened", s.Close())
			}
			if tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("opened: %v", err)
			}
			if tt.want != nil && !strings.Contains(err.Error(), "move") {
				t.Errorf("no remedy: %v", err)
			}
			if read(t, path) != before {
				t.Error("the file was changed")
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWithoutBeingTheOwnerNothingIsMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if _, err := Open(t.Context(), path, false); !errors.Is(err, ErrVersion) {
		t.Errorf("open of none: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("it was made")
	}
	owner := open(t, path)
	other, err := Open(t.Context(), path, false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	if err := other.AddKey(t.Context(), Key{ID: "k", Hash: []byte("h")}); err != nil {
		t.Fatal(err)
	}
	if _, err := owner.KeyOf(t.Context(), []byte("h")); err != nil {
		t.Errorf("what another process wrote: %v", err)
	}
	info, err := os.Stat(path + "-wal")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the log is %v, %v", info, err)
	}
}

// T34, T36: a full disk is an error, and is none any more when there is space.
func TestAFullDiskIsAnError(t *testing.T) {
	s, ctx := fresh(t), t.Context()
	if _, err := s.rw.ExecContext(ctx, "PRAGMA max_page_count=20"); err != nil {
		t.Fatal(err)
	}
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = s.Apply(ctx, Change{Insert: &Sandbox{ID: fmt.Sprint("i", n), Owner: "a", State: Creating, Spec: make([]byte, 4000)}})
	}
	if !errors.Is(err, ErrUnwritable) {
		t.Fatalf("write number %d: %v", n, err)
	}
	rows, err := s.Sandboxes(ctx)
	if err != nil || len(rows) != n-1 {
		t.Errorf("%d of %d rows, %v", len(rows), n-1, err)
	}
	if _, err := s.rw.ExecContext(ctx, "PRAGMA max_page_count=10000"); err != nil {
		t.Fatal(err)
	}
	if err := s.Apply(ctx, Change{Insert: &Sandbox{ID: "later", Owner: "a", State: Creating, Spec: []byte("{}")}}); err != nil {
		t.Errorf("with space again: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	s := fresh(t)
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			id := fmt.Sprint("i", i)
			if err := s.Apply(t.Context(), Change{Insert: &Sandbox{ID: id, Owner: "a", State: Creating, Spec: []byte("{}")}, Durable: i%2 == 0}); err != nil {
				t.Error(err)
			}
			if _, err := s.Owner(t.Context(), id); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Apply(ended, Change{Forget: "i1"}); !errors.Is(err, context.Canceled) {
		t.Errorf("under an ended context: %v", err)
	}
	if err := s.Apply(t.Context(), Change{Forget: "i1", Durable: true}); err != nil {
		t.Errorf("after that: %v", err)
	}
}
