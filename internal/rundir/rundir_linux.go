package rundir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	lockName   = "lock"
	recordName = "machine.json"
	// Directories being made and being removed carry these prefixes. No machine
	// ID begins with a dot.
	newPrefix = ".new-"
	oldPrefix = ".old-"
	// attempts bounds how often Create starts anew because a sweeper took its
	// unfinished directory for an abandoned one.
	attempts = 8
)

// ErrExists means that a directory of this name exists.
var ErrExists = errors.New("run directory already exists")

// A Dir is a machine's directory whose lock this process holds. Its methods are
// safe for concurrent use.
type Dir struct {
	path string
	lock *os.File

	mu     sync.Mutex
	record Record
	closed bool
}

// Create makes the directory base/id (mode 0700), locked by this process, with
// rec as its record; the owner's identity in rec is filled in. base is made if it
// is missing, and refused if somebody else owns it or may write to it. The caller
// has checked id. An existing directory gives an error wrapping ErrExists.
func Create(base, id string, rec Record) (*Dir, error) {
	if id == "" || id[0] == '.' || strings.ContainsRune(id, filepath.Separator) {
		return nil, fmt.Errorf("cannot create run directory: bad name %.80q", id)
	}
	if err := secureBase(base); err != nil {
		return nil, err
	}
	err := reserve.join()
	if err != nil {
		return nil, err
	}
	for range attempts {
		var d *Dir
		d, err = create(base, id, rec)
		if err == nil {
			return d, nil
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
	}
	reserve.leave()
	return nil, fmt.Errorf("cannot create run directory %s: %w", filepath.Join(base, id), err)
}

func create(base, id string, rec Record) (_ *Dir, err error) {
	tmp := filepath.Join(base, newPrefix+rand.Text())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, err
	}
	d := &Dir{path: tmp}
	defer func() {
		if err != nil {
			err = errors.Join(err, WithReserve(func() error { return os.RemoveAll(tmp) }))
			if d.lock != nil {
				_ = d.lock.Close()
			}
		}
	}()
	// The lock gets its name when it is held: a sweeper takes one that is not.
	unnamed := filepath.Join(tmp, lockName+".tmp")
	d.lock, err = os.OpenFile(unnamed, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(d.lock); err != nil {
		return nil, err
	}
	if err := os.Rename(unnamed, filepath.Join(tmp, lockName)); err != nil {
		return nil, err
	}
	rec.Owner, err = self()
	if err != nil {
		return nil, err
	}
	rec.Version, rec.ID = recordVersion, id
	d.record = rec
	if err := d.record.write(tmp); err != nil {
		return nil, err
	}
	path := filepath.Join(base, id)
	err = unix.Renameat2(unix.AT_FDCWD, tmp, unix.AT_FDCWD, path, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return nil, ErrExists
	}
	if err != nil {
		return nil, err
	}
	d.path = path
	return d, nil
}

// secureBase makes base, and refuses one in which another user could have
// prepared names for us to trip over.
func secureBase(base string) error {
	if err := os.MkdirAll(base, 0o700); err != nil {
		return fmt.Errorf("cannot create directory of machines: %w", err)
	}
	info, err := os.Lstat(base)
	if err != nil {
		return fmt.Errorf("cannot inspect directory of machines: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fmt.Errorf("cannot use %s for machines: it is not a directory", base)
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("cannot use %s for machines: it belongs to user %d, not to %d", base, st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("cannot use %s for machines: others may write to it (mode %#o); remove that with chmod go-w", base, info.Mode().Perm())
	}
	return nil
}

func flock(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// Path is the directory's path.
func (d *Dir) Path() string { return d.path }

// Join is the path of a file in the directory.
func (d *Dir) Join(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Record is a copy of the directory's record.
func (d *Dir) Record() Record {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.record.clone()
}

// Update changes the record and writes it to disk before it returns. Intent goes
// first: a caller records a resource with it and only then makes the resource.
func (d *Dir) Update(change func(*Record)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("cannot update record of %s: %w", d.path, fs.ErrClosed)
	}
	next := d.record.clone()
	change(&next)
	if err := next.write(d.path); err != nil {
		return fmt.Errorf("cannot update record of %s: %w", d.path, err)
	}
	d.record = next
	return nil
}

// Remove deletes the directory and gives up the lock. The name is free at once;
// what a crash leaves half deleted is found by Sweep. It is idempotent.
func (d *Dir) Remove() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	doomed := d.path
	if !strings.HasPrefix(filepath.Base(d.path), ".") {
		doomed = filepath.Join(filepath.Dir(d.path), oldPrefix+rand.Text())
		if err := os.Rename(d.path, doomed); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot remove run directory: %w", err)
		}
		d.path = doomed
	}
	err := WithReserve(func() error {
		if err := removeAllButLock(doomed); err != nil {
			return err
		}
		return os.RemoveAll(doomed)
	})
	if err != nil {
		return fmt.Errorf("cannot remove run directory: %w", err)
	}
	return d.closeLocked()
}

// removeAllButLock keeps the lock's name in place while anything else is there,
// so that a sweeper that comes by sees that it is held.
func removeAllButLock(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if e.Name() != lockName {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// Close gives up the lock and leaves the directory. It is idempotent.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	return d.closeLocked()
}

func (d *Dir) closeLocked() error {
	d.closed = true
	reserve.leave()
	return d.lock.Close()
}
