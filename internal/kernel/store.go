package kernel

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	manifestName   = "manifest.json"
	manifestMax    = 1 << 20
	manifestFormat = 1
	digestPrefix   = "sha256:"
	// tempPrefix marks a directory in the making; no digest begins so.
	tempPrefix = ".new-"
	// tempLifetime is how old one must be before it counts as abandoned.
	tempLifetime = time.Hour
)

// A Store keeps kernels in a directory.
type Store struct{ dir string }

// Open returns the store in dir, an absolute path; it need not exist yet.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("cannot open kernel store: %q is not an absolute path", dir)
	}
	return &Store{dir: dir}, nil
}

// List returns the kernels, the last added first. Directories that are none are
// left out.
func (s *Store) List() ([]Kernel, error) {
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list kernels: %w", err)
	}
	var all []Kernel
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		if k, err := s.read(e.Name()); err == nil {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b Kernel) int { return b.Added.Compare(a.Added) })
	return all, nil
}

// Find returns the kernel that a digest or the beginning of one, or a release
// names; the last added for the empty name. Without one the error wraps ErrNone.
func (s *Store) Find(name string) (Kernel, error) {
	all, err := s.List()
	if err != nil {
		return Kernel{}, err
	}
	var found []Kernel
	short := strings.TrimPrefix(name, digestPrefix)
	for _, k := range all {
		if name == "" || k.Manifest.Release == name {
			return k, nil
		}
		if strings.HasPrefix(strings.TrimPrefix(k.Digest, digestPrefix), short) {
			found = append(found, k)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return Kernel{}, fmt.Errorf("cannot find kernel: %q is the beginning of %d digests", name, len(found))
	case name != "":
		return Kernel{}, fmt.Errorf("cannot find kernel %q: %w", name, ErrNone)
	}
	return Kernel{}, fmt.Errorf("%w in %s: get one with bouvet kernel fetch", ErrNone, s.dir)
}

func (s *Store) read(name string) (Kernel, error) {
	dir := filepath.Join(s.dir, name)
	f, err := os.Open(filepath.Join(dir, manifestName))
	if err != nil {
		return Kernel{}, err
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, manifestMax)) //nolint:forbidigo // limited; our own file
	if err != nil {
		return Kernel{}, err
	}
	sum := sha256.Sum256(data)
	if hex.EncodeToString(sum[:]) != name {
		return Kernel{}, fmt.Errorf("cannot use kernel %s: its manifest was changed", dir)
	}
	k := Kernel{Digest: digestPrefix + name, Dir: dir}
	dec := json.NewDecoder(bytes.NewReader(data)) //nolint:forbidigo // limited; our own file
	if err := dec.Decode(&k.Manifest); err != nil {
		return Kernel{}, fmt.Errorf("cannot use kernel %s: %w", dir, err)
	}
	if k.Manifest.Format != manifestFormat {
		return Kernel{}, fmt.Errorf("cannot use kernel %s: its format is %d, not %d", dir, k.Manifest.Format, manifestFormat)
	}
	info, err := f.Stat()
	if err != nil {
		return Kernel{}, err
	}
	k.Added = info.ModTime()
	for _, p := range k.parts() {
		if !filepath.IsLocal(p.Name) {
			return Kernel{}, fmt.Errorf("cannot use kernel %s: bad name %q", dir, p.Name)
		}
		k.Size += p.Size
	}
	return k, nil
}

func (k *Kernel) parts() []Part {
	all := append([]Part{k.Manifest.Image}, k.Manifest.Modules...)
	if k.Manifest.Config != nil {
		all = append(all, *k.Manifest.Config)
	}
	return all
}

// ImagePath is the absolute path of the ELF image.
func (k *Kernel) ImagePath() string { return filepath.Join(k.Dir, k.Manifest.Image.Name) }

// Verify reads every part and compares it with its digest.
func (k *Kernel) Verify() error {
	for _, p := range k.parts() {
		if _, err := k.Read(p); err != nil {
			return err
		}
	}
	return nil
}

// Read returns the content of a part, whose digest it has checked.
func (k *Kernel) Read(p Part) ([]byte, error) {
	f, err := os.Open(filepath.Join(k.Dir, p.Name))
	if err != nil {
		return nil, fmt.Errorf("cannot read kernel: %w", err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, imageMax)) //nolint:forbidigo // limited; our own file
	if err != nil {
		return nil, fmt.Errorf("cannot read kernel: %w", err)
	}
	if digest(data) != p.Digest {
		return nil, fmt.Errorf("cannot use kernel: %s was changed; remove %s and fetch it again", p.Name, k.Dir)
	}
	return data, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return digestPrefix + hex.EncodeToString(sum[:])
}

// add puts a kernel into the store; one that is there already is taken.
func (s *Store) add(m Manifest, files map[string][]byte) (_ Kernel, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return Kernel{}, fmt.Errorf("cannot make kernel store: %w", err)
	}
	m.Format = manifestFormat
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Kernel{}, err
	}
	name := strings.TrimPrefix(digest(data), digestPrefix)
	if k, err := s.read(name); err == nil && k.Verify() == nil {
		return k, nil
	}
	tmp, err := os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	if err := os.Mkdir(filepath.Join(tmp, modulesDir), 0o700); err != nil {
		return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
	}
	files[manifestName] = data
	for name, content := range files {
		if err := writeFile(filepath.Join(tmp, name), content); err != nil {
			return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
		}
	}
	path := filepath.Join(s.dir, name)
	if err := os.Rename(tmp, path); errors.Is(err, fs.ErrExist) {
		// It is damaged, or another process was faster.
		if err := os.RemoveAll(path); err != nil {
			return Kernel{}, fmt.Errorf("cannot replace kernel: %w", err)
		}
		if err := os.Rename(tmp, path); err != nil {
			return Kernel{}, fmt.Errorf("cannot replace kernel: %w", err)
		}
	} else if err != nil {
		return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
	}
	return s.read(name)
}

// writeFile writes a file that everybody who reaches it may read: a virtual machine
// monitor without privileges opens it by a descriptor.
func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(0o444), f.Sync(), f.Close())
}

// prune removes what fetches that were killed have left.
func (s *Store) prune() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > tempLifetime {
			_ = os.RemoveAll(filepath.Join(s.dir, e.Name()))
		}
	}
}
