package snapstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet/internal/snapshot"
)

func newStore(t *testing.T) *Store {
	t.Helper()
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// write makes what can be read as a snapshot.
func write(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, "state"), []byte("content"), 0o600); err != nil {
		return err
	}
	return snapshot.Write(context.Background(), dir, snapshot.Manifest{Driver: "fake", MemoryMiB: 64}, "state")
}

func names(t *testing.T, s *Store) string {
	t.Helper()
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, info := range all {
		list = append(list, info.Name)
	}
	return strings.Join(list, " ")
}

// entries counts all there is, with a name and without.
func entries(t *testing.T, s *Store) int {
	t.Helper()
	all, err := os.ReadDir(s.Dir())
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestStore(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"b", "a.1_x-y"} {
		if err := s.Save(t.Context(), name, write); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, s); got != "a.1_x-y b" {
		t.Errorf("got %s", got)
	}
	if err := s.Save(t.Context(), "b", write); !errors.Is(err, ErrExists) {
		t.Errorf("a name that is taken: got %v", err)
	}
	info, err := s.Inspect("b")
	if err != nil || info.Manifest == nil || info.Manifest.MemoryMiB != 64 || info.Size == 0 || info.Problem != "" {
		t.Errorf("got %+v, %v", info, err)
	}
	dir, release, err := s.Acquire("b")
	if err != nil || dir != info.Path {
		t.Fatalf("got %s, %v", dir, err)
	}
	again, err := Open(s.Dir()) // as another process
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := again.Acquire("b")
	if err != nil {
		t.Fatal(err)
	}
	release()
	release()
	if err := s.Remove("b"); !errors.Is(err, ErrInUse) {
		t.Errorf("one in use: got %v", err)
	}
	second()
	if err := s.Remove("b"); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"Remove":  s.Remove("b"),
		"Inspect": func() error { _, err := s.Inspect("b"); return err }(),
		"Acquire": func() error { _, _, err := s.Acquire("b"); return err }(),
	} {
		if !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: got %v, want ErrNotFound", what, err)
		}
	}
	if got := names(t, s); got != "a.1_x-y" || entries(t, s) != 1 {
		t.Errorf("got %s and %d entries", got, entries(t, s))
	}
}

// T44: names are names.
func TestNames(t *testing.T) {
	s := newStore(t)
	for _, name := range []string{"", ".", "..", "../x", "a/b", "-x", ".tmp-x", "A", "a b", "a:b", strings.Repeat("x", 129), "a\x00"} {
		_, _, acquire := s.Acquire(name)
		_, inspect := s.Inspect(name)
		for _, err := range []error{s.Save(t.Context(), name, write), s.Remove(name), acquire, inspect} {
			if err == nil || errors.Is(err, ErrNotFound) {
				t.Errorf("%q: got %v, want a refusal", name, err)
			}
		}
	}
	if n := entries(t, s); n != 0 {
		t.Errorf("%d entries were made", n)
	}
}

// What cannot be written leaves nothing, and neither does what is no snapshot.
func TestSaveFails(t *testing.T) {
	s := newStore(t)
	boom := errors.New("boom")
	for _, do := range []func(string) error{
		func(dir string) error { return errors.Join(os.WriteFile(dir+"/half", nil, 0o600), boom) },
		func(string) error { return nil },
	} {
		if err := s.Save(t.Context(), "x", do); err == nil {
			t.Error("got no error")
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Save(ctx, "x", write); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	if n := entries(t, s); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// Of many who make one name, one does.
func TestSaveConcurrently(t *testing.T) {
	s := newStore(t)
	var all sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		all.Go(func() { errs[i] = s.Save(t.Context(), "x", write) })
	}
	all.Wait()
	made := 0
	for _, err := range errs {
		if err == nil {
			made++
		} else if !errors.Is(err, ErrExists) {
			t.Error(err)
		}
	}
	if made != 1 || entries(t, s) != 1 {
		t.Errorf("%d made it, %d entries", made, entries(t, s))
	}
}

// A directory without a name lives as long as its maker, and one whose maker was
// killed goes when the store is opened.
func TestTemp(t *testing.T) {
	s := newStore(t)
	dir, release, err := s.Temp(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.Prepare(dir); err != nil {
		t.Error(err)
	}
	left := filepath.Join(s.Dir(), tempPrefix+"left")
	if err := errors.Join(os.Mkdir(left, 0o700), os.WriteFile(left+"/file", nil, 0o400)); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(s.Dir()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); err == nil {
		t.Error("what was left is still there")
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("what is in use was removed: %v", err)
	}
	release()
	release()
	if n := entries(t, s); n != 0 {
		t.Errorf("%d entries are left", n)
	}
}

// What is damaged is shown as such, and can be removed.
func TestDamaged(t *testing.T) {
	s := newStore(t)
	if err := s.Save(t.Context(), "x", write); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.Dir(), "x", "manifest.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Problem == "" || all[0].Manifest != nil {
		t.Errorf("got %+v, %v", all, err)
	}
	if err := s.Remove("x"); err != nil {
		t.Error(err)
	}
}
