package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Remove takes a name away, and with an image's last name the image itself. It
// fails with an error wrapping ErrInUse if that is in use.
func (s *Store) Remove(ctx context.Context, name string) error {
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	info, err := s.readRef(name)
	if err != nil && (errors.Is(err, ErrNotFound) || ValidName(name) != nil) {
		return fmt.Errorf("cannot remove image: %w", err)
	}
	if err != nil {
		// A record that cannot be read names no image that could be in use.
		return os.Remove(s.refPath(name))
	}
	others, err := s.names(ctx, info.Digest)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", name, err)
	}
	if len(others) > 1 {
		return s.removeRef(name)
	}
	blob, err := s.lockBlob(info.Digest)
	if err != nil {
		return fmt.Errorf("cannot remove image %s: %w", name, err)
	}
	if blob != nil {
		defer func() { _ = blob.Close() }()
	}
	if err := s.removeRef(name); err != nil {
		return err
	}
	return s.unlinkBlob(info.Digest)
}

func (s *Store) removeRef(name string) error {
	if err := os.Remove(s.refPath(name)); err != nil {
		return fmt.Errorf("cannot remove image: %w", err)
	}
	return syncDir(s.path("refs"))
}

// names returns the names of an image. It fails if there is one whose record
// cannot be read, because that may be one of them.
func (s *Store) names(ctx context.Context, digest string) ([]string, error) {
	list, err := s.List(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, info := range list {
		if info.Problem != "" {
			return nil, fmt.Errorf("the record of %s is damaged (%s); remove that first", info.Name, info.Problem)
		}
		if info.Digest == digest {
			names = append(names, info.Name)
		}
	}
	return names, nil
}

// lockBlob takes the lock that no user may hold. It returns nil if there is no
// such file.
func (s *Store) lockBlob(digest string) (*os.File, error) {
	f, err := openFile(s.blobPath(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	ok, err := tryFlock(f, unix.LOCK_EX)
	if err == nil && !ok {
		err = fmt.Errorf("%w: a sandbox or another process holds it; end that first", ErrInUse)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (s *Store) unlinkBlob(digest string) error {
	var errs []error
	for _, p := range []string{s.blobPath(digest), s.stampPath(digest)} {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("cannot remove image: %w", err))
		}
	}
	return errors.Join(errs...)
}

// dropBlob removes an image that has no name. The store's lock must be held.
func (s *Store) dropBlob(ctx context.Context, digest string) error {
	names, err := s.names(ctx, digest)
	if err != nil || len(names) > 0 {
		return err
	}
	f, err := s.lockBlob(digest)
	if err != nil {
		return err
	}
	if f != nil {
		defer func() { _ = f.Close() }()
	}
	return s.unlinkBlob(digest)
}

// Clean removes what nobody needs any more: temporary files whose makers are
// dead, and images without a name that nobody uses. It returns what it removed.
// While a name's record cannot be read no image is removed.
func (s *Store) Clean(ctx context.Context) ([]string, error) {
	if err := s.cleanTemp(ctx); err != nil {
		return nil, err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(s.path("blobs"))
	if err != nil {
		return nil, fmt.Errorf("cannot clean image store: %w", err)
	}
	var removed []string
	for _, e := range entries {
		hex, ok := strings.CutSuffix(strings.TrimPrefix(e.Name(), "sha256-"), ".erofs")
		digest := "sha256:" + hex
		if !ok || !digestPattern.MatchString(digest) {
			continue
		}
		names, err := s.names(ctx, digest)
		if err != nil {
			return removed, fmt.Errorf("cannot clean image store: %w", err)
		}
		if len(names) > 0 {
			continue
		}
		if err := s.dropBlob(ctx, digest); errors.Is(err, ErrInUse) {
			continue
		} else if err != nil {
			return removed, err
		}
		removed = append(removed, digest)
	}
	return removed, nil
}
