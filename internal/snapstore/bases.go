package snapstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
)

// MaxBases is how many bases are kept: those that were used last, and those in use.
const MaxBases = 8

// Bases implements bouvet.Bases: a store whose snapshots are made when they are first
// asked for, and go when others were used since.
type Bases struct{ store *Store }

// OpenBases is Open, of a directory for nothing but bases.
func OpenBases(dir string) (*Bases, error) {
	s, err := Open(dir)
	if err != nil {
		return nil, err
	}
	return &Bases{s}, nil
}

// Before a base's name these make those of the file that is locked by who makes it, and
// of the one that says that it is of no use.
const (
	makingPrefix  = ".making-"
	droppedPrefix = ".dropped-"
)

// Acquire implements bouvet.Bases.
func (b *Bases) Acquire(ctx context.Context, key string, create func(dir string) error) (dir string, release func(), err error) {
	if dir, release, err = b.acquire(key); !errors.Is(err, ErrNotFound) && !errors.Is(err, ErrInUse) {
		return dir, release, err
	}
	making, err := b.lock(ctx, key)
	if err != nil {
		return "", nil, err
	}
	defer func() { _ = making.Close() }()
	// Whoever had the lock may have made it.
	if dir, release, err = b.acquire(key); !errors.Is(err, ErrNotFound) {
		return dir, release, err
	}
	if err := b.store.Remove(key); err != nil && !errors.Is(err, ErrNotFound) {
		return "", nil, err // it was dropped, and some still have it
	}
	if err := os.Remove(b.store.path(droppedPrefix + key)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", nil, err
	}
	b.prune(MaxBases - 1)
	if err := b.store.Save(ctx, key, create); err != nil {
		return "", nil, fmt.Errorf("cannot make base: %w", err)
	}
	return b.acquire(key)
}

// acquire holds a base that is there, and notes that it was used.
func (b *Bases) acquire(key string) (dir string, release func(), err error) {
	if _, err := os.Lstat(b.store.path(droppedPrefix + key)); err == nil {
		return "", nil, ErrNotFound
	}
	dir, release, err = b.store.Acquire(key)
	if err == nil {
		now := time.Now()
		_ = os.Chtimes(dir, now, now)
	}
	return dir, release, err
}

// lock waits until nobody else makes the base of that key. A lock on a descriptor of
// one's own keeps out goroutines, too.
func (b *Bases) lock(ctx context.Context, key string) (*os.File, error) {
	f, err := os.OpenFile(b.store.path(makingPrefix+key), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make base: %w", err)
	}
	err = wait.Until(ctx, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, errors.Join(fmt.Errorf("cannot wait for another who makes a base: %w", err), f.Close())
	}
	return f, nil
}

// Drop implements bouvet.Bases. A base in use stays until it is not; until then there
// is none of that key.
func (b *Bases) Drop(key string) error {
	err := b.store.Remove(key)
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case !errors.Is(err, ErrInUse):
		return err
	}
	f, err := os.OpenFile(b.store.path(droppedPrefix+key), os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot drop base: %w", err)
	}
	return f.Close()
}

// prune removes bases that are not in use until at most n are there, those first that
// were not used for the longest time.
func (b *Bases) prune(n int) {
	entries, err := os.ReadDir(b.store.dir)
	if err != nil {
		return
	}
	type base struct {
		name string
		used time.Time
	}
	var all []base
	for _, e := range entries {
		if info, err := e.Info(); err == nil && e.IsDir() && ValidName(e.Name()) == nil {
			all = append(all, base{e.Name(), info.ModTime()})
		}
	}
	slices.SortFunc(all, func(a, b base) int { return a.used.Compare(b.used) })
	extra := len(all) - n
	for _, old := range all {
		if extra > 0 && b.store.Remove(old.name) == nil {
			extra--
			_ = os.Remove(b.store.path(makingPrefix + old.name))
			_ = os.Remove(b.store.path(droppedPrefix + old.name))
		}
	}
}
