package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm"
)

const (
	manifestName = "manifest.json"
	// maxManifest bounds the manifest, in bytes.
	maxManifest = 256 << 10
	// maxFiles bounds the files of a snapshot.
	maxFiles = 64
)

var fileName = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// Prepare checks that dir is one that a machine can be saved into: an absolute path
// of an empty directory that belongs to this user alone.
func Prepare(dir string) error {
	if err := private(dir); err != nil {
		return fmt.Errorf("cannot save a machine into %.200q: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = errors.New("directory is not empty")
	}
	if err != nil {
		return fmt.Errorf("cannot save a machine into %.200q: %w", dir, err)
	}
	return nil
}

// Clear empties dir after a failure.
func Clear(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	return err
}

func private(dir string) error {
	if !filepath.IsAbs(dir) {
		return errors.New("path is not absolute")
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return errors.New("it is not a directory")
	case ok && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("directory belongs to user %d, not to %d", st.Uid, os.Geteuid())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("others may write to the directory (mode %#o); remove that with chmod go-w", info.Mode().Perm())
	}
	return nil
}

// Write completes the snapshot in dir, in which the named files are. They are made
// read-only and flushed; the manifest, which comes last, makes them a snapshot.
func Write(ctx context.Context, dir string, m Manifest, names ...string) error {
	m.Format, m.Created, m.Files = Format, time.Now().UTC().Truncate(time.Second), nil
	for _, name := range names {
		f, err := seal(ctx, filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("cannot complete snapshot: %w", err)
		}
		m.Files = append(m.Files, f)
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err == nil {
		err = replace(filepath.Join(dir, manifestName), data)
	}
	if err != nil {
		return fmt.Errorf("cannot complete snapshot: %w", err)
	}
	return nil
}

func seal(ctx context.Context, path string) (_ File, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return File{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Chmod(0o400); err != nil {
		return File{}, err
	}
	if err := f.Sync(); err != nil {
		return File{}, err
	}
	info, err := f.Stat()
	if err != nil {
		return File{}, err
	}
	sum, err := digest(ctx, f)
	return File{Name: filepath.Base(path), Size: info.Size(), Digest: sum}, err
}

// replace writes a file that is there whole or not at all, also after a crash.
func replace(path string, data []byte) error {
	f, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(path+".tmp", path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(path+".tmp"))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Read returns the manifest of the snapshot in dir without looking at its files. An
// error wraps vm.ErrBadSnapshot.
func Read(dir string) (*Manifest, error) {
	m, err := read(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %.200s: %w", vm.ErrBadSnapshot, dir, err)
	}
	return m, nil
}

func read(dir string) (*Manifest, error) {
	if err := private(dir); err != nil {
		return nil, err
	}
	f, err := openFile(filepath.Join(dir, manifestName))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxManifest+1)) //nolint:forbidigo // limited
	if err != nil {
		return nil, err
	}
	if len(data) > maxManifest {
		return nil, fmt.Errorf("its manifest is longer than %d bytes", maxManifest)
	}
	var m Manifest
	dec := json.NewDecoder(bytes.NewReader(data)) //nolint:forbidigo // limited, and no peer's: our own file
	dec.DisallowUnknownFields()
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("its manifest is damaged: %w", err)
	}
	if m.Format != Format {
		return nil, fmt.Errorf("it is of format %d, want %d", m.Format, Format)
	}
	if len(m.Files) == 0 || len(m.Files) > maxFiles {
		return nil, fmt.Errorf("its manifest names %d files", len(m.Files))
	}
	for _, f := range m.Files {
		if !fileName.MatchString(f.Name) || f.Name == manifestName || f.Size < 0 {
			return nil, fmt.Errorf("its manifest names a file %.80q of %d bytes", f.Name, f.Size)
		}
	}
	return &m, nil
}

// Open returns the manifest of the snapshot in dir, having made sure that every
// file is what the manifest says. That takes time in proportion to the files' data
// only when they were not checked before since they last changed. An error wraps
// vm.ErrBadSnapshot, but for ctx's.
func Open(ctx context.Context, dir string) (*Manifest, error) {
	m, err := Read(dir)
	if err != nil {
		return nil, err
	}
	if err := verify(ctx, dir, m); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %.200s: %w", vm.ErrBadSnapshot, dir, err)
	}
	return m, nil
}

// openFile opens a regular file of ours, and nothing through a link.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, fmt.Errorf("%s is a symbolic link", filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", filepath.Base(path))
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
