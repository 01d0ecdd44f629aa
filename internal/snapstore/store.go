// Package snapstore keeps the snapshots of sandboxes by name, in a directory that
// several processes may use. A snapshot in use is not removed, and what a process that
// was killed had begun to write goes with the next one's start.
package snapstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
)

// Errors a caller acts on; they are to be found with errors.Is.
var (
	// ErrNotFound means that no snapshot has this name.
	ErrNotFound = errors.New("no such snapshot")
	// ErrExists means that a snapshot has this name already.
	ErrExists = errors.New("snapshot already exists")
	// ErrInUse means that a sandbox, or a process about to make one, holds a snapshot.
	ErrInUse = errors.New("snapshot is in use")
)

// A Store keeps snapshots in a directory:
//
//	NAME/         a snapshot, as internal/snapshot has it
//	.tmp-RANDOM/  one that is being made or removed, or that has no name
//
// Whoever writes to one holds an exclusive lock on its directory, whoever uses it a
// shared one; the kernel drops both with their process. Its methods are safe for
// concurrent use.
type Store struct{ dir string }

const tempPrefix = ".tmp-"

// Open returns the store in dir, which exists, and removes what processes that were
// killed have left there.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("cannot open snapshot store %q: its path must be absolute", dir)
	}
	s := &Store{dir: filepath.Clean(dir)}
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("cannot open snapshot store: %w", err)
	}
	return s, nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

// ValidName reports an error unless name may name a snapshot: at most 128 of a-z, 0-9,
// '.', '_' and '-', not beginning with punctuation.
func ValidName(name string) error {
	if !namePattern.MatchString(name) {
		return fmt.Errorf("%.200q cannot name a snapshot: use a-z, 0-9, '.', '_' and '-'", name)
	}
	return nil
}

// Temp implements bouvet.Snapshots: a directory without a name.
func (s *Store) Temp(ctx context.Context) (dir string, release func(), err error) {
	lock, err := s.temp(ctx)
	if err != nil {
		return "", nil, err
	}
	// A process that finds it is locked leaves it alone; should the removal fail, the
	// next one to open the store tries again.
	return lock.Name(), sync.OnceFunc(func() {
		_ = os.RemoveAll(lock.Name())
		_ = lock.Close()
	}), nil
}

// temp makes a directory and holds it.
func (s *Store) temp(ctx context.Context) (*os.File, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		path := filepath.Join(s.dir, tempPrefix+strings.ToLower(rand.Text()))
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make snapshot: %w", err)
		}
		lock, err := hold(path, unix.LOCK_EX)
		if err == nil {
			return lock, nil
		}
		// Somebody swept it between the two.
		if !errors.Is(err, ErrInUse) && !errors.Is(err, ErrNotFound) {
			return nil, errors.Join(err, os.RemoveAll(path))
		}
	}
}

// Save makes a snapshot: write fills the empty directory it is given. It is there
// under its name once it is whole.
func (s *Store) Save(ctx context.Context, name string, write func(dir string) error) (err error) {
	if err := s.Free(name); err != nil {
		return err
	}
	lock, err := s.temp(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(lock.Name()))
		}
		err = errors.Join(err, lock.Close())
	}()
	if err := write(lock.Name()); err != nil {
		return err
	}
	if _, err := snapshot.Read(lock.Name()); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, lock.Name(), unix.AT_FDCWD, s.path(name), unix.RENAME_NOREPLACE)
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("cannot make snapshot %s: %w", name, ErrExists)
	case err != nil:
		return fmt.Errorf("cannot make snapshot %s: %w", name, os.NewSyscallError("renameat2", err))
	}
	return s.sync()
}

// Free reports an error unless a snapshot of that name can be made.
func (s *Store) Free(name string) error {
	if err := ValidName(name); err != nil {
		return err
	}
	if _, err := os.Lstat(s.path(name)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot make snapshot %s: %w", name, errors.Join(ErrExists, err))
	}
	return nil
}

// Acquire finds a snapshot and holds it until release is called, or this process ends.
func (s *Store) Acquire(name string) (dir string, release func(), err error) {
	if err := ValidName(name); err != nil {
		return "", nil, err
	}
	lock, err := hold(s.path(name), unix.LOCK_SH)
	if err != nil {
		return "", nil, fmt.Errorf("cannot use snapshot %s: %w", name, err)
	}
	return lock.Name(), sync.OnceFunc(func() { _ = lock.Close() }), nil
}

// Remove removes a snapshot, unless it is in use.
func (s *Store) Remove(name string) (err error) {
	if err := ValidName(name); err != nil {
		return err
	}
	lock, err := hold(s.path(name), unix.LOCK_EX)
	if err != nil {
		return fmt.Errorf("cannot remove snapshot %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	// It is whole, or it is gone.
	temp := filepath.Join(s.dir, tempPrefix+strings.ToLower(rand.Text()))
	if err := os.Rename(s.path(name), temp); err != nil {
		return fmt.Errorf("cannot remove snapshot %s: %w", name, err)
	}
	return errors.Join(os.RemoveAll(temp), s.sync())
}

// Info describes a snapshot.
type Info struct {
	Name string `json:"name"`
	// Path is the directory it is in.
	Path string `json:"path"`
	// Size is what it takes on the disk, in bytes.
	Size int64 `json:"size"`
	// Problem says why it cannot be used, if that is known.
	Problem string `json:"problem,omitempty"`
	// Manifest is nil if there is a Problem.
	Manifest *snapshot.Manifest `json:"manifest,omitempty"`
}

// Inspect describes one snapshot. Its files are not read.
func (s *Store) Inspect(name string) (Info, error) {
	if err := ValidName(name); err != nil {
		return Info{}, err
	}
	info := Info{Name: name, Path: s.path(name)}
	if _, err := os.Lstat(info.Path); errors.Is(err, fs.ErrNotExist) {
		return Info{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	}
	m, err := snapshot.Read(info.Path)
	if err != nil {
		info.Problem = err.Error()
	}
	info.Manifest, info.Size = m, used(info.Path)
	return info, nil
}

// List describes all snapshots, sorted by name.
func (s *Store) List() ([]Info, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot list snapshots: %w", err)
	}
	var all []Info
	for _, e := range entries {
		if ValidName(e.Name()) != nil {
			continue
		}
		info, err := s.Inspect(e.Name())
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

// used is what the files of a directory take on the disk, in bytes.
func used(dir string) (n int64) {
	const block = 512 // stat(2)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				n += st.Blocks * block
			}
		}
	}
	return n
}

// sweep removes what nobody holds of what has no name.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), tempPrefix) {
			continue
		}
		lock, err := hold(s.path(e.Name()), unix.LOCK_EX)
		if errors.Is(err, ErrInUse) || errors.Is(err, ErrNotFound) {
			continue
		}
		if err == nil {
			err = errors.Join(os.RemoveAll(lock.Name()), lock.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) sync() error {
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// hold opens a directory and locks it. The lock is worth something only while the
// directory is where it was found.
func hold(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrInUse
	}
	if err == nil {
		err = still(path, f)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// still reports whether path names the directory that is open.
func still(path string, f *os.File) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	open, err := f.Stat()
	if err == nil && !os.SameFile(now, open) {
		err = ErrNotFound
	}
	return err
}
