package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A Handle is an image in use. Until it is released, or its process ends, the
// image cannot be removed.
type Handle struct {
	info    Info
	release func() error
}

// Path returns the absolute path of the image file.
func (h *Handle) Path() string { return h.info.Path }

// Digest returns the digest of the image, "sha256:" and 64 hexadecimal digits.
func (h *Handle) Digest() string { return h.info.Digest }

// Info describes the image.
func (h *Handle) Info() Info { return h.info }

// Release ends the use. It may be called more than once.
func (h *Handle) Release() error { return h.release() }

// Acquire finds an image by name or digest, as Inspect does, checks that its
// file is the one that was written, and holds it until the Handle is released.
// The check reads the whole file only if it has changed since the last time; it
// fails with an error wrapping ErrCorrupt.
func (s *Store) Acquire(ctx context.Context, nameOrDigest string) (*Handle, error) {
	for {
		info, err := s.Inspect(ctx, nameOrDigest)
		if err != nil {
			return nil, err
		}
		f, err := s.hold(ctx, info)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue // removed or replaced between the look and the lock
		}
		if err := s.check(ctx, f, info.Digest, info.Size, false); err != nil {
			_ = f.Close()
			return nil, err
		}
		return &Handle{info: info, release: sync.OnceValue(f.Close)}, nil
	}
}

// hold opens the image's file and takes a shared lock on it. It returns nil if
// the file is no longer the store's by then.
func (s *Store) hold(ctx context.Context, info Info) (*os.File, error) {
	f, err := openFile(info.Path)
	if errors.Is(err, fs.ErrNotExist) {
		now, err := s.readRef(info.Name)
		if err == nil && now.Digest == info.Digest {
			return nil, corrupt(info.Digest, "its file is missing")
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open image: %w", err)
	}
	if err := flock(ctx, f, unix.LOCK_SH); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot open image: %w", err)
	}
	ok, err := stillAt(info.Path, f)
	if ok && err == nil {
		return f, nil
	}
	_ = f.Close()
	return nil, err
}
