package rundir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unfinishedAge is how old a directory without a lock must be before it counts
// as abandoned: its creator is between two system calls otherwise.
const unfinishedAge = time.Minute

// forkTime is how long the lock of a dead owner may still be held by a child that
// it had forked and that has not reached its exec.
const forkTime = time.Second

// An Abandoned is a directory whose owner is dead.
type Abandoned struct {
	// Path is the directory; Dir holds its lock, unless Err says why the
	// directory cannot be handled. An error wrapping ErrUnreadable comes with the
	// lock held nevertheless.
	Path string
	Dir  *Dir
	Err  error
}

// Sweep finds the directories in base whose owners are dead and takes their
// locks. The caller cleans up after each and calls Remove, or Close to leave it.
// Remains of unfinished creations and removals, for which nothing outside the
// directory exists, are deleted here if remove is set. A base that does not exist is empty.
func Sweep(ctx context.Context, base string, remove bool) ([]Abandoned, error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list machines: %w", err)
	}
	var found []Abandoned
	for _, e := range entries {
		path := filepath.Join(base, e.Name())
		if !e.IsDir() {
			continue
		}
		if strings.HasPrefix(e.Name(), newPrefix) || strings.HasPrefix(e.Name(), oldPrefix) {
			if remove {
				if err := sweepRemains(path); err != nil {
					found = append(found, Abandoned{Path: path, Err: err})
				}
			}
			continue
		}
		d, err := takeAbandoned(ctx, path)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, errChanged):
		case err != nil:
			found = append(found, Abandoned{Path: path, Dir: d, Err: err})
		default:
			found = append(found, Abandoned{Path: path, Dir: d})
		}
	}
	return found, nil
}

var errChanged = errors.New("directory was removed meanwhile")

// takeAbandoned is Take, with patience where the record names a dead owner.
func takeAbandoned(ctx context.Context, path string) (*Dir, error) {
	ctx, cancel := context.WithTimeout(ctx, forkTime)
	defer cancel()
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		d, err := Take(path)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return d, err
		}
		if r, readErr := readRecord(path); readErr != nil || r.Owner.Alive() {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(wait):
		}
	}
}

// Take takes the lock of an existing directory without waiting. While the owner
// lives the error wraps EWOULDBLOCK. If the record is unreadable, the directory is returned locked
// together with the error.
func Take(path string) (*Dir, error) {
	lock, err := takeLock(path)
	if err != nil {
		return nil, err
	}
	if err := reserve.join(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	d := &Dir{path: path, lock: lock}
	d.record, err = readRecord(path)
	if err != nil {
		return d, fmt.Errorf("cannot read %s: %w", filepath.Join(path, recordName), err)
	}
	return d, nil
}

func takeLock(dir string) (*os.File, error) {
	name := filepath.Join(dir, lockName)
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if _, statErr := os.Lstat(dir); errors.Is(statErr, fs.ErrNotExist) {
			return nil, errChanged
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open lock: %w", err)
	}
	if err := flock(f); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock %s: %w", name, err)
	}
	// The owner may have removed the directory between our open and our lock.
	held, err1 := f.Stat()
	named, err2 := os.Lstat(name)
	if err1 != nil || err2 != nil || !os.SameFile(held, named) {
		_ = f.Close()
		return nil, errChanged
	}
	return f, nil
}

func sweepRemains(path string) error {
	lock, err := takeLock(path)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, errChanged):
		return nil
	case errors.Is(err, fs.ErrNotExist):
		info, err := os.Lstat(path)
		if err != nil || time.Since(info.ModTime()) < unfinishedAge {
			return nil // gone, or young enough to be in the making
		}
	case err != nil:
		return err
	default:
		defer func() { _ = lock.Close() }()
	}
	if err := removeAllButLock(path); err != nil {
		return fmt.Errorf("cannot remove remains: %w", err)
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("cannot remove remains: %w", err)
	}
	return nil
}
