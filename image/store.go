package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Store keeps images in a directory:
//
//	blobs/sha256-HEX.erofs   an image, read-only, named by its digest
//	blobs/sha256-HEX.json    what the file looked like when it was last read whole
//	refs/NAME.json           a name, and the digest it stands for
//	tmp/                     what is being made; each file is locked by its maker
//	lock                     held while names and images change
//
// Several processes may use one Store. An image in use is held by a shared lock
// on its file, which the kernel drops with the process that took it. Its methods
// are safe for concurrent use.
type Store struct {
	dir string
	// wrap, if set, stands between imports and the file they write, for tests.
	wrap func(Output) Output
}

// Open returns the store in dir, which it makes if need be.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("cannot open image store %q: its path must be absolute", dir)
	}
	s := &Store{dir: filepath.Clean(dir)}
	for _, d := range []string{s.dir, s.path("blobs"), s.path("refs"), s.path("tmp")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("cannot open image store: %w", err)
		}
	}
	return s, nil
}

// Dir returns the store's directory.
func (s *Store) Dir() string { return s.dir }

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

// blobPath is where the image with this digest is; hex is its hexadecimal part.
func (s *Store) blobPath(digest string) string {
	return s.path("blobs", "sha256-"+strings.TrimPrefix(digest, "sha256:")+".erofs")
}

// lock takes the store's lock, for as long as it takes to change names; long
// work happens before.
func (s *Store) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(s.path("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock image store: %w", err)
	}
	if err := flock(ctx, f, unix.LOCK_EX); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot lock image store: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// lockRetry is how often a lock that is taken is tried again.
const lockRetry = 5 * time.Millisecond

// flock takes a lock on f, waiting until ctx ends.
func flock(ctx context.Context, f *os.File, how int) error {
	var tick *time.Ticker
	for {
		ok, err := tryFlock(f, how)
		if ok || err != nil {
			return err
		}
		if tick == nil {
			tick = time.NewTicker(lockRetry)
			defer tick.Stop()
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// tryFlock takes a lock on f unless somebody else's stands against it.
func tryFlock(f *os.File, how int) (bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		}
		return false, fmt.Errorf("cannot lock %s: %w", f.Name(), err)
	}
}

// stillAt reports whether path still names the file that is open as f.
func stillAt(path string, f *os.File) (bool, error) {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	open, err := f.Stat()
	if err != nil {
		return false, err
	}
	return os.SameFile(now, open), nil
}
