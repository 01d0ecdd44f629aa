package kernel

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	manifestName   = "manifest.json"
	manifestMax    = 1 << 20
	manifestFormat = 1
	digestPrefix   = "sha256:"
	configName     = "config"
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
// names. For the empty name it is the one to use by default: one that is known to
// need no module, as those are that Build makes, rather than one that has them, and
// that rather than one of which nothing is known; among equals the last added.
// Without one the error wraps ErrNone.
func (s *Store) Find(name string) (Kernel, error) {
	all, err := s.List()
	if err != nil {
		return Kernel{}, err
	}
	if name == "" && len(all) > 0 {
		return slices.MaxFunc(all, func(a, b Kernel) int { return cmp.Compare(a.preference(), b.preference()) }), nil
	}
	var found []Kernel
	short := strings.TrimPrefix(name, digestPrefix)
	for _, k := range all {
		if name != "" && k.Manifest.Release == name {
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
	return Kernel{}, fmt.Errorf("%w in %s: get one with bouvet kernel fetch, or a smaller and faster one with bouvet kernel build", ErrNone, s.dir)
}

// preference is how much Find likes a kernel; see there.
func (k *Kernel) preference() int {
	switch {
	case len(k.Manifest.Modules) > 0:
		return 1
	case k.Manifest.Config != nil:
		return 2
	default:
		return 0
	}
}

// Remove removes a kernel. Machines that run keep theirs.
func (s *Store) Remove(k Kernel) error {
	tmp, done, err := s.workDir()
	if err != nil {
		return err
	}
	// Under its name it is there as a whole or not at all.
	if err := os.Rename(k.Dir, filepath.Join(tmp, "removed")); err != nil {
		return errors.Join(fmt.Errorf("cannot remove kernel: %w", err), done())
	}
	return done()
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

// addParts puts a kernel of these parts into the store. Without a configuration it
// has no features.
func (s *Store) addParts(m Manifest, image []byte, modules []module, dotConfig []byte) (Kernel, error) {
	files := map[string][]byte{imageName: image}
	m.Image = Part{Name: imageName, Digest: digest(image), Size: int64(len(image))}
	for _, mod := range modules {
		file := path.Join(modulesDir, mod.name+".ko")
		files[file] = mod.data
		m.Modules = append(m.Modules, Part{Name: file, Digest: digest(mod.data), Size: int64(len(mod.data))})
	}
	if len(dotConfig) > 0 {
		c, err := parseConfig(dotConfig, false)
		if err != nil {
			return Kernel{}, err
		}
		files[configName] = dotConfig
		m.Config = &Part{Name: configName, Digest: digest(dotConfig), Size: int64(len(dotConfig))}
		m.Features = c.features()
	}
	return s.add(m, files)
}

// add puts a kernel into the store; one that is there already is taken.
func (s *Store) add(m Manifest, files map[string][]byte) (_ Kernel, err error) {
	m.Format = manifestFormat
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Kernel{}, err
	}
	name := strings.TrimPrefix(digest(data), digestPrefix)
	if k, err := s.read(name); err == nil && k.Verify() == nil {
		return k, nil
	}
	work, done, err := s.workDir()
	if err != nil {
		return Kernel{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	tmp := filepath.Join(work, "kernel")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
	}
	if err := os.Mkdir(filepath.Join(tmp, modulesDir), 0o700); err != nil {
		return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
	}
	files[manifestName] = data
	for name, content := range files {
		if err := writeFile(filepath.Join(tmp, name), content); err != nil {
			return Kernel{}, fmt.Errorf("cannot store kernel: %w", err)
		}
	}
	final := filepath.Join(s.dir, name)
	if err := os.Rename(tmp, final); errors.Is(err, fs.ErrExist) {
		// It is damaged, or another process was faster.
		if err := os.RemoveAll(final); err != nil {
			return Kernel{}, fmt.Errorf("cannot replace kernel: %w", err)
		}
		if err := os.Rename(tmp, final); err != nil {
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

// workDir makes a directory for what is in the making; done removes it. It is
// locked, so that nobody takes it for abandoned.
func (s *Store) workDir() (dir string, done func() error, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("cannot make kernel store: %w", err)
	}
	s.prune()
	dir, err = os.MkdirTemp(s.dir, tempPrefix)
	if err != nil {
		return "", nil, fmt.Errorf("cannot use kernel store: %w", err)
	}
	lock, err := os.Open(dir)
	if err == nil {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		return "", nil, errors.Join(fmt.Errorf("cannot lock %s: %w", dir, err), closeIf(lock), os.RemoveAll(dir))
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
}

func closeIf(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// prune removes what processes that were killed have left.
func (s *Store) prune() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasPrefix(e.Name(), tempPrefix) || time.Since(info.ModTime()) < tempLifetime {
			continue
		}
		dir := filepath.Join(s.dir, e.Name())
		f, err := os.Open(dir)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir)
		}
		_ = f.Close()
	}
}
