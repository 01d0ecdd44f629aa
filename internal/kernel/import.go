package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

var errNoRelease = errors.New("cannot use kernel: its image does not tell its version")

// ImportOptions are the options of Import. The zero value is useful.
type ImportOptions struct {
	// Modules is a directory with the kernel's modules, /lib/modules/RELEASE say;
	// empty means that it needs none.
	Modules string
	// Config is the kernel's configuration; empty means the one that the image
	// carries (CONFIG_IKCONFIG), if it does.
	Config []byte
}

// Import puts a kernel of somebody else's making into the store: an ELF image for
// x86-64 with a PVH entry, or a bzImage that contains one. Where its configuration is
// known, it must have all that a guest needs; where it is not, Find does not choose
// the kernel by itself.
func (s *Store) Import(ctx context.Context, file string, o ImportOptions) (Kernel, error) {
	data, err := readFile(file, imageMax)
	if err != nil {
		return Kernel{}, fmt.Errorf("cannot import kernel: %w", err)
	}
	image, err := uncompress(ctx, data)
	if err != nil {
		return Kernel{}, err
	}
	m := Manifest{Release: releaseOf(image), Source: digest(data)}
	if m.Release == "" {
		return Kernel{}, errNoRelease
	}
	if len(o.Config) == 0 {
		if o.Config, err = embeddedConfig(image); err != nil {
			return Kernel{}, err
		}
	}
	var c config
	if len(o.Config) > 0 {
		if c, err = parseConfig(o.Config, true); err != nil {
			return Kernel{}, err
		}
	}
	var order []module
	if o.Modules != "" {
		if order, err = readModules(ctx, o.Modules, m.Release, c); err != nil {
			return Kernel{}, err
		}
	}
	if c != nil {
		have := map[string][]byte{}
		for _, m := range order {
			have[m.name] = m.data
		}
		if unmet := c.unmet(have); len(unmet) > 0 {
			return Kernel{}, fmt.Errorf("cannot use kernel %s: by its configuration a guest cannot run on it: %s (modules: see --modules)", m.Release, strings.Join(unmet, ", "))
		}
	}
	return s.addParts(m, image, order, o.Config)
}

// readModules reads those modules in dir that a guest needs, in the order in which
// they are to be loaded.
func readModules(ctx context.Context, dir, release string, c config) ([]module, error) {
	files, builtin, err := findModules(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot import modules: %w", err)
	}
	for _, n := range needs {
		if c.value(n.symbol) == "y" && n.module != "" {
			builtin[n.module] = true
		}
	}
	// What they depend on is known once they are read.
	modules := map[string][]byte{}
	for wanted := slices.Clone(Modules); len(wanted) > 0; wanted = wanted[1:] {
		name := wanted[0]
		file, ok := files[name]
		if _, done := modules[name]; done || !ok {
			continue
		}
		data, err := readFile(file, moduleMax)
		if err == nil && !bytes.HasPrefix(data, []byte("\x7fELF")) {
			data, err = expand(ctx, data, moduleMax)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot import module %s: %w", file, err)
		}
		modules[name] = data
		for _, key := range []string{"depends", "softdep"} {
			values, err := modinfo(data, key)
			if err != nil {
				return nil, fmt.Errorf("cannot import module %s: %w", file, err)
			}
			for _, list := range values {
				for dep := range strings.FieldsFuncSeq(strings.TrimPrefix(list, "pre:"), func(r rune) bool { return r == ',' || r == ' ' }) {
					wanted = append(wanted, strings.ReplaceAll(dep, "-", "_"))
				}
			}
		}
		magic, err := modinfo(data, "vermagic")
		if err != nil || len(magic) != 1 || !strings.HasPrefix(magic[0], release+" ") {
			return nil, fmt.Errorf("cannot import module %s: it is for %.80q, and not for %s", file, strings.Join(magic, ","), release)
		}
	}
	return loadOrder(Modules, modules, builtin)
}

// findModules finds the files of modules in and below dir by their names, and what
// is built in.
func findModules(dir string) (files map[string]string, builtin map[string]bool, err error) {
	files, builtin = map[string]string{}, map[string]bool{}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		base := path
		for _, suffix := range []string{".xz", ".zst", ".gz"} {
			base = strings.TrimSuffix(base, suffix)
		}
		if name, ok := moduleName(base); ok {
			files[name] = path
		}
		if e.Name() == builtinName {
			data, err := readFile(path, outputMax)
			if err != nil {
				return err
			}
			addBuiltin(builtin, data)
		}
		return nil
	})
	return files, builtin, err
}

// readFile reads a regular file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	// A pipe without a writer would keep us.
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", name, info.Size(), limit)
	}
	return readLimited(f, limit)
}
