package image

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// newTemp makes an empty file in the store's tmp, locked for as long as it is
// open. A file there without a lock has lost its maker.
func (s *Store) newTemp(kind string) (*os.File, error) {
	for range 16 {
		path := s.path("tmp", kind+"-"+rand.Text())
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot make a temporary file: %w", err)
		}
		ok, err := tryFlock(f, unix.LOCK_EX)
		if err == nil && ok {
			if ok, err = stillAt(path, f); err == nil && ok {
				return f, nil
			}
		}
		// Somebody cleaned up between the open and the lock.
		_ = f.Close()
		if err != nil {
			_ = os.Remove(path)
			return nil, err
		}
	}
	return nil, errors.New("cannot make a temporary file: others keep removing it")
}

// newTempDir makes an empty directory in the store's tmp, guarded by a lock on
// a file of the same name; release removes both.
func (s *Store) newTempDir(kind string) (dir string, release func(), err error) {
	guard, err := s.newTemp(kind)
	if err != nil {
		return "", nil, err
	}
	dir = guard.Name() + ".d"
	if err := os.Mkdir(dir, 0o700); err != nil {
		_ = os.Remove(guard.Name())
		_ = guard.Close()
		return "", nil, fmt.Errorf("cannot make a temporary directory: %w", err)
	}
	return dir, func() {
		if err := removeAll(dir); err == nil {
			_ = os.Remove(guard.Name())
		}
		_ = guard.Close() // what is left the next cleaning removes
	}, nil
}

// removeAll removes a directory in which killed programs may not yet be dead.
func removeAll(dir string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for tries := 100; ; tries-- {
		err := os.RemoveAll(dir)
		if err == nil || tries == 0 {
			return err
		}
		<-tick.C
	}
}

// cleanTemp removes what dead makers left behind.
func (s *Store) cleanTemp(ctx context.Context) error {
	entries, err := os.ReadDir(s.path("tmp"))
	if err != nil {
		return fmt.Errorf("cannot clean image store: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		name := e.Name()
		if guard, ok := strings.CutSuffix(name, ".d"); ok && e.IsDir() {
			name = guard // goes with its guard, and has none only if that is dead
			if _, err := os.Lstat(s.path("tmp", guard)); errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, os.RemoveAll(s.path("tmp", e.Name())))
			}
		}
		if err := removeDeadTemp(s.path("tmp", name)); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func removeDeadTemp(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot clean image store: %w", err)
	}
	defer func() { _ = f.Close() }()
	if ok, err := tryFlock(f, unix.LOCK_EX); !ok || err != nil {
		return err
	}
	if ok, err := stillAt(path, f); !ok || err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(path+".d"), os.Remove(path))
}

// syncDir makes a rename in dir last.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// writeFile replaces the file at path as a whole.
func (s *Store) writeFile(path string, data []byte) error {
	f, err := s.newTemp("file")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("cannot write %s: %w", filepath.Base(path), err)
	}
	return syncDir(filepath.Dir(path))
}
