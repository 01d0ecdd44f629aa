package firecracker

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/disk"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// Restore implements vm.Driver.
func (d *Driver) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	if err := check(&c); err != nil {
		return nil, err
	}
	if !d.version.pauses() {
		return nil, fmt.Errorf("%w: machines of Firecracker %v do not survive being saved; install %v or a later one", vm.ErrUnsupported, d.version, vsockSettles)
	}
	have, err := snapshot.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	here, err := d.manifest(ctx, &c)
	if err != nil {
		return nil, err
	}
	if err := have.Match(here); err != nil {
		return nil, err
	}
	if err := matchFiles(have.Files, &c); err != nil {
		return nil, err
	}
	c.ImageDigest = here.Image
	p := &plan{files: []file{{c.Image, jailImage}}, begin: d.load}
	for name, in := range map[string]string{stateFile: jailState, memoryFile: jailMemory} {
		path := filepath.Join(dir, name)
		if _, err := inspect(path); err != nil {
			return nil, fmt.Errorf("%w: %w", vm.ErrBadSnapshot, err)
		}
		p.files = append(p.files, file{path, in})
	}
	if c.DiskMiB > 0 {
		p.disk = func(ctx context.Context, path string) (*os.File, error) {
			from, err := os.OpenFile(filepath.Join(dir, diskFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
			if err != nil {
				return nil, fmt.Errorf("cannot read disk: %w", err)
			}
			defer func() { _ = from.Close() }()
			return disk.Copy(ctx, path, from)
		}
	}
	return d.make(ctx, &c, p)
}

// matchFiles reports in what the files of a snapshot are not those of machine c.
func matchFiles(have []snapshot.File, c *vm.Config) error {
	const anySize = -1
	want := map[string]int64{stateFile: anySize, memoryFile: int64(c.MemoryMiB) << 20}
	if c.DiskMiB > 0 {
		want[diskFile] = int64(c.DiskMiB) << 20
	}
	for _, f := range have {
		size, ok := want[f.Name]
		switch {
		case !ok:
			return fmt.Errorf("%w: it has a file %.80q", vm.ErrBadSnapshot, f.Name)
		case size != anySize && size != f.Size:
			return fmt.Errorf("%w: its file %s has %d bytes, not the machine's %d", vm.ErrBadSnapshot, f.Name, f.Size, size)
		}
		delete(want, f.Name)
	}
	for name := range want {
		return fmt.Errorf("%w: it has no file %s", vm.ErrBadSnapshot, name)
	}
	return nil
}

// load starts a guest from a snapshot. Its paths are those in the jail, which are the
// same in every one, so that nothing of it has to be overridden.
func (d *Driver) load(ctx context.Context, m *machine) error {
	serial := d.serial()
	if err := m.api.put(ctx, serial.path, serial.body); err != nil {
		return err
	}
	return m.api.call(ctx, saveTimeout, http.MethodPut, pathSnapshotLoad, &snapshotLoad{
		State: "/" + jailState, Memory: memoryBackend{Type: memoryFromFile, Path: "/" + jailMemory}, Resume: true,
	}, nil)
}
