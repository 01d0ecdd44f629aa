package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/disk"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// detailTSC is the frequency of the time stamp counter that the guest was told, in
	// kHz, which may differ by one part in tscTolerance.
	detailTSC    = "tsc_khz"
	tscTolerance = 500
)

// Restore implements vm.Driver.
func (d *Driver) Restore(ctx context.Context, c vm.Config, dir string) (vm.Machine, error) {
	if err := validate(&c); err != nil {
		return nil, err
	}
	saved, err := snapshot.Open(ctx, dir)
	if err != nil {
		return nil, err
	}
	accel, err := d.Acceleration(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot restore machine %s: %w", c.ID, err)
	}
	here, err := d.manifest(ctx, &c, accel.Name)
	if err != nil {
		return nil, err
	}
	if err := match(saved, &here); err != nil {
		return nil, err
	}
	f := &files{}
	if err := d.openSaved(ctx, f, &c, saved, dir); err != nil {
		f.close()
		return nil, err
	}
	return d.make(ctx, &c, accel.Name, f, func(run *rundir.Dir) error {
		if c.DiskMiB == 0 {
			return nil
		}
		from, err := os.OpenFile(filepath.Join(dir, diskName), os.O_RDONLY|unix.O_NOFOLLOW, 0)
		if err != nil {
			return fmt.Errorf("cannot read disk: %w", err)
		}
		defer func() { _ = from.Close() }()
		f.disk, err = disk.Copy(ctx, run.Join(diskName), from)
		return err
	})
}

// match reports why a machine that was saved elsewhere cannot be restored here.
func match(saved, here *snapshot.Manifest) error {
	if err := saved.Match(here); err != nil {
		return err
	}
	then, err := strconv.ParseInt(saved.Details[detailTSC], 10, 63)
	if err != nil {
		return fmt.Errorf("%w: its %s is %.40q", vm.ErrBadSnapshot, detailTSC, saved.Details[detailTSC])
	}
	now, err := strconv.ParseInt(here.Details[detailTSC], 10, 63)
	if err != nil {
		return err
	}
	if d := then - now; d > now/tscTolerance || -d > now/tscTolerance {
		return fmt.Errorf("%w: its clock ticks at %d kHz, here it is %d", vm.ErrBadSnapshot, then, now)
	}
	want := map[string]bool{ramName: true, stateName: true}
	if saved.DiskMiB > 0 {
		want[diskName] = true
	}
	for _, file := range saved.Files {
		if !want[file.Name] {
			return fmt.Errorf("%w: it has a file %.80q", vm.ErrBadSnapshot, file.Name)
		}
		delete(want, file.Name)
	}
	for name := range want {
		return fmt.Errorf("%w: it has no file %s", vm.ErrBadSnapshot, name)
	}
	return nil
}

// openSaved opens what QEMU reads to restore a machine.
func (d *Driver) openSaved(ctx context.Context, f *files, c *vm.Config, saved *snapshot.Manifest, dir string) (err error) {
	if f.image, err = openImage(c); err != nil {
		return err
	}
	if f.state, err = os.OpenFile(filepath.Join(dir, stateName), os.O_RDONLY|unix.O_NOFOLLOW, 0); err != nil {
		return fmt.Errorf("cannot read state of devices: %w", err)
	}
	digest := ""
	for _, file := range saved.Files {
		if file.Name == ramName {
			digest = file.Digest
		}
	}
	ram, err := d.rams.get(ctx, digest, func() (*os.File, error) {
		return loadRAM(ctx, filepath.Join(dir, ramName), int64(c.MemoryMiB)<<20)
	})
	if err != nil {
		return err
	}
	f.ram, f.unshare = ram.file, func() { d.rams.put(digest, ram) }
	return nil
}

// load restores the state of the devices, after which the guest goes on.
func (m *machine) load(ctx context.Context) error {
	load, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	err := m.qmp.execute(load, "migrate-incoming", struct {
		URI string `json:"uri"`
	}{"fd:" + strconv.Itoa(stateFD)})
	if err == nil {
		select {
		case <-m.qmp.resumed:
		case <-m.qmp.ended: // a state that QEMU cannot load ends it
			err = m.qmp.failure()
		case <-load.Done():
			err = load.Err()
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return fmt.Errorf("cannot restore the state of devices: %w", m.orGone(err))
}

// A programVersion is what a program says of its version, as long as its file is the
// same.
type programVersion struct {
	mu      sync.Mutex
	of      [4]int64
	version string
}

// versionTimeout bounds the question for it.
const versionTimeout = 10 * time.Second

// version says what can load the state of this driver's machines: QEMU's exact version, since the machine type has none.
func (d *Driver) version(ctx context.Context) (string, error) {
	of, err := fileStamp(d.program)
	if err != nil {
		return "", fmt.Errorf("cannot find QEMU's version: %w", err)
	}
	p := &d.qemu
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.version != "" && p.of == of {
		return p.version, nil
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	said := life.NewTail(stderrTail)
	cmd := exec.CommandContext(ctx, d.program, "--version")
	cmd.Env, cmd.Dir, cmd.WaitDelay = environment(), "/", outputDelay
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("cannot find QEMU's version: %w", err)
	}
	first, _, _ := strings.Cut(said.String(), "\n")
	_, version, ok := strings.Cut(first, "version ")
	if !ok {
		return "", fmt.Errorf("cannot find QEMU's version: it says %.200q", first)
	}
	p.of, p.version = of, version
	return p.version, nil
}

// fileStamp is the same as long as the file is.
func fileStamp(path string) ([4]int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return [4]int64{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return [4]int64{}, errors.ErrUnsupported
	}
	return [4]int64{int64(st.Dev), int64(st.Ino), st.Size, st.Ctim.Nano()}, nil //nolint:gosec // compared, not counted with
}
