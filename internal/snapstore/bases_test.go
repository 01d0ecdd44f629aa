package snapstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func newBases(t *testing.T) *Bases {
	t.Helper()
	b, err := OpenBases(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// However many want a base at once, in this process and, as far as locks tell, in
// others, one makes it.
func TestBaseIsMadeOnce(t *testing.T) {
	dir := t.TempDir()
	var made atomic.Int32
	var all sync.WaitGroup
	for range 4 {
		b, err := OpenBases(dir)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			all.Go(func() {
				got, release, err := b.Acquire(t.Context(), "key", func(dir string) error { made.Add(1); return write(dir) })
				if err != nil || got != dir+"/key" {
					t.Errorf("got %s, %v", got, err)
					return
				}
				release()
			})
		}
	}
	all.Wait()
	if n := made.Load(); n != 1 {
		t.Errorf("it was made %d times", n)
	}
}

// A base that could not be made leaves nothing, and the next one tries again; who
// waits for it gives up with the context.
func TestBaseFails(t *testing.T) {
	b := newBases(t)
	broken := errors.New("broken")
	begun, proceed := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		_, _, err := b.Acquire(t.Context(), "key", func(string) error { close(begun); <-proceed; return broken })
		first <- err
	}()
	<-begun
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	if _, _, err := b.Acquire(ctx, "key", write); !errors.Is(err, cause) {
		t.Errorf("while another makes it: got %v", err)
	}
	close(proceed)
	if err := <-first; !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if n := len(names(t, b.store)); n != 0 {
		t.Errorf("%d bases are left of one that failed", n)
	}
	_, release, err := b.Acquire(t.Context(), "key", write)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

// A base that is dropped in use stays for who has it. There is another when it is free.
func TestBaseDropped(t *testing.T) {
	b := newBases(t)
	dir, release, err := b.Acquire(t.Context(), "key", write)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := b.Drop("key"); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) == 0 {
		t.Errorf("the files of one in use: got %v, %v", left, err)
	}
	made := 0
	remake := func(dir string) error { made++; return write(dir) }
	if _, _, err := b.Acquire(t.Context(), "key", remake); !errors.Is(err, ErrInUse) {
		t.Errorf("one that was dropped and is in use: got %v", err)
	}
	release()
	for range 2 {
		_, again, err := b.Acquire(t.Context(), "key", remake)
		if err != nil || made != 1 {
			t.Fatalf("it was made %d times: %v", made, err)
		}
		again()
	}
	if err := b.Drop("key"); err != nil {
		t.Fatal(err)
	}
	if n := entries(t, b.store); n != 1 { // the file that is locked
		t.Errorf("%d entries are left", n)
	}
	if err := b.Drop("other"); err != nil {
		t.Errorf("one that is not there: got %v", err)
	}
}

// The oldest go, but not those in use.
func TestBasesArePruned(t *testing.T) {
	b := newBases(t)
	_, release, err := b.Acquire(t.Context(), "used", write)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	begin := time.Now().Add(-time.Hour)
	age := func(name string, n int) {
		at := begin.Add(time.Duration(n) * time.Minute)
		if err := os.Chtimes(b.store.path(name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	age("used", 0)
	for i := range MaxBases + 3 {
		name := fmt.Sprintf("k%02d", i)
		_, free, err := b.Acquire(t.Context(), name, write)
		if err != nil {
			t.Fatal(err)
		}
		free()
		age(name, i+1)
	}
	want := "k04 k05 k06 k07 k08 k09 k10 used"
	if got := names(t, b.store); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
