package firecracker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// saveTimeout bounds the writing and the reading of a guest's memory by Firecracker.
const saveTimeout = 5 * time.Minute

// Names in a snapshot.
const (
	stateFile  = "state"
	memoryFile = "memory"
	// diskFile is also the name of the disk in a machine's directory.
	diskFile = "disk"
)

// Pause implements vm.Machine.
func (m *machine) Pause(ctx context.Context) error { return m.change(ctx, true) }

// Resume implements vm.Machine.
func (m *machine) Resume(ctx context.Context) error { return m.change(ctx, false) }

func (m *machine) change(ctx context.Context, pause bool) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.finish()
	return m.set(ctx, pause)
}

// begin waits until nobody else changes the machine's state; finish ends that.
func (m *machine) begin(ctx context.Context) error {
	if !m.driver.version.pauses() {
		return fmt.Errorf("%w: machines of Firecracker %v do not survive a pause; install %v or a later one", vm.ErrUnsupported, m.driver.version, vsockSettles)
	}
	if err := m.Gone(); err != nil {
		return err
	}
	select {
	case m.calls <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.Done():
		return m.Gone()
	}
	if err := errors.Join(m.Gone(), context.Cause(ctx)); err != nil {
		m.finish()
		return err
	}
	return nil
}

func (m *machine) finish() { <-m.calls }

// set pauses the machine, or has it go on. It is done in no time, and is not given up
// half-way.
func (m *machine) set(ctx context.Context, pause bool) error {
	if m.paused == pause {
		return nil
	}
	state := stateResumed
	if pause {
		state = statePaused
	}
	if err := m.api.patch(context.WithoutCancel(ctx), pathVM, &vmState{state}); err != nil {
		return m.explain(err)
	}
	m.paused = pause
	return nil
}

// explain turns the failure of a call into the machine's end, if that is why.
func (m *machine) explain(err error) error {
	if !refused(err) && m.settled() {
		if gone := m.Gone(); gone != nil {
			return gone
		}
	}
	return err
}

// Snapshot implements vm.Machine, but that its streams are reset: Firecracker resets
// the guest's vsock whenever it saves a machine.
func (m *machine) Snapshot(ctx context.Context, dir string) (err error) {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.finish()
	manifest, err := m.driver.manifest(ctx, &m.config)
	if err != nil {
		return err
	}
	if err := snapshot.Prepare(dir); err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, m.jail.remove(jailSavedState), m.jail.remove(jailSavedMemory))
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot save machine %s: %w", m.ID(), err), snapshot.Clear(dir))
		}
	}()
	if err := m.save(ctx, dir); err != nil {
		return err
	}
	for from, to := range map[string]string{jailSavedState: stateFile, jailSavedMemory: memoryFile} {
		if err := m.jail.copyOut(ctx, from, filepath.Join(dir, to)); err != nil {
			return err
		}
	}
	names := []string{stateFile, memoryFile}
	if m.config.DiskMiB > 0 {
		names = append(names, diskFile)
	}
	if err := snapshot.Write(ctx, dir, *manifest, names...); err != nil {
		return err
	}
	return errors.Join(share(filepath.Join(dir, stateFile)), share(filepath.Join(dir, memoryFile)))
}

// save has Firecracker write the machine into the jail, and copies its disk to dir,
// while the guest stands still. Firecracker cannot be told to stop in the middle.
func (m *machine) save(ctx context.Context, dir string) (err error) {
	if !m.paused {
		if err := m.set(ctx, true); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.set(ctx, false)) }()
	}
	defer m.channel.reset()
	err = m.api.call(context.WithoutCancel(ctx), saveTimeout, http.MethodPut, pathSnapshotCreate,
		&snapshotCreate{Type: snapshotFull, State: "/" + jailSavedState, Memory: "/" + jailSavedMemory}, nil)
	if err != nil {
		return m.explain(err)
	}
	if m.config.DiskMiB > 0 {
		if err := m.saveDisk(ctx, filepath.Join(dir, diskFile)); err != nil {
			return fmt.Errorf("cannot copy disk: %w", err)
		}
	}
	return context.Cause(ctx)
}

// saveDisk copies the machine's disk to a new file.
func (m *machine) saveDisk(ctx context.Context, to string) error {
	src, err := os.OpenFile(m.Dir().Join(diskFile), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	return copyTo(ctx, to, src)
}

// copyTo copies a file to a new one.
func copyTo(ctx context.Context, to string, src *os.File) error {
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(snapshot.CopySparse(ctx, dst, src), dst.Close())
}

// copyOut copies what Firecracker wrote, and may still hold open.
func (j *jail) copyOut(ctx context.Context, name, to string) error {
	src, err := j.open(name, os.O_RDONLY|unix.O_NONBLOCK, unix.S_IFREG)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	return copyTo(ctx, to, src)
}

// share lets the users of clones read a file of a snapshot, if it is handed to them:
// its directory is its owner's alone.
func share(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o444), f.Close())
}

// manifest is what a snapshot of machine c must say to be used here.
func (d *Driver) manifest(ctx context.Context, c *vm.Config) (*snapshot.Manifest, error) {
	digest, err := snapshot.ImageDigest(ctx, c)
	if err != nil {
		return nil, err
	}
	cpu, err := snapshot.HostCPU()
	if err != nil {
		return nil, fmt.Errorf("cannot identify processor: %w", err)
	}
	var host unix.Utsname
	if err := unix.Uname(&host); err != nil {
		return nil, fmt.Errorf("cannot identify host: %w", err)
	}
	// Firecracker's state is bound to its format and to the host's kernel.
	version := fmt.Sprintf("format %s on Linux %s", d.format, unix.ByteSliceToString(host.Release[:]))
	m := snapshot.Of(c, Name, version, cpu)
	m.Image = digest
	m.Kernel = d.kernel.Digest + " " + filepath.Base(d.initramfs)
	return &m, nil
}
