package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/internal/tsc"
	"github.com/bouvet-run/bouvet/vm"
)

// The files of a snapshot besides its manifest.
const (
	ramName   = "memory"
	stateName = "devices"
	// diskName is also the name of the disk in a machine's directory.
	diskName = "disk"
)

const (
	// maxState bounds the state of the devices, in bytes: it is some 100 KiB.
	maxState = 16 << 20
	// stateTimeout bounds its saving and loading.
	stateTimeout = 30 * time.Second
	// quietRounds is how many times QEMU answers while nothing moves in the channel
	// before nothing will: it takes at least 4 KiB of what waits each time, if it can
	// at all, and what waits is counted in pieces of at most 36 KiB.
	quietRounds = 12
	// maxRounds bounds the wait for that.
	maxRounds = 5000
)

// Snapshot implements vm.Machine.
func (m *machine) Snapshot(ctx context.Context, dir string) error {
	if err := m.Gone(); err != nil {
		return err
	}
	if err := snapshot.Prepare(dir); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-m.Done():
			cancel(m.Gone())
		case <-ctx.Done():
		}
	}()
	err := m.snapshot(ctx, dir)
	if err == nil {
		return nil
	}
	err = m.orGone(err)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return errors.Join(fmt.Errorf("cannot save machine %s: %w", m.ID(), err), snapshot.Clear(dir))
}

func (m *machine) snapshot(ctx context.Context, dir string) error {
	manifest, err := m.driver.manifest(ctx, &m.config, m.accel)
	if err != nil {
		return err
	}
	if err := m.take(ctx); err != nil {
		return err
	}
	defer m.give()
	names, err := m.saveStill(ctx, dir)
	if err != nil {
		return err
	}
	return snapshot.Write(ctx, dir, manifest, names...)
}

// saveStill saves the machine while its processors stand still.
func (m *machine) saveStill(ctx context.Context, dir string) (names []string, err error) {
	if !m.paused {
		// It goes on also when ctx has ended.
		always := context.WithoutCancel(ctx)
		defer func() { err = errors.Join(err, m.tell(always, "cont", nil)) }()
		if err := m.tell(always, "stop", nil); err != nil {
			return nil, err
		}
	}
	for _, c := range []*channel{m.channel, m.bulk} {
		if err := c.stop(); err != nil {
			return nil, err
		}
		defer c.resume()
	}
	if err := m.awaitQuiet(ctx); err != nil {
		return nil, err
	}
	return m.save(ctx, dir)
}

// awaitQuiet returns when QEMU does not put into the guest's memory any more what it
// was sent before.
func (m *machine) awaitQuiet(ctx context.Context) error {
	last, err := m.still()
	for round, quiet := 0, 0; err == nil && quiet < quietRounds; round++ {
		if round == maxRounds {
			return errors.New("the channel to the guest does not come to rest")
		}
		if err := m.tell(ctx, "query-status", nil); err != nil {
			return err
		}
		var now [2]still
		now, err = m.still()
		if quiet++; now != last || now[0].in > 0 {
			quiet, last = 0, now
		}
	}
	return err
}

// still is that of all ways to the guest.
func (m *machine) still() (all [2]still, err error) {
	var errs [2]error
	all[0], errs[0] = m.channel.still()
	all[1], errs[1] = m.bulk.still()
	return all, errors.Join(errs[0], errs[1])
}

// save writes the files of the snapshot.
func (m *machine) save(ctx context.Context, dir string) ([]string, error) {
	names := []string{ramName, stateName}
	files := []func(*os.File) error{
		func(f *os.File) error { return m.saveRAM(ctx, f) },
		func(f *os.File) error { return m.saveState(ctx, f) },
	}
	if m.files.disk != nil {
		names = append(names, diskName)
		files = append(files, func(f *os.File) error { return snapshot.CopySparse(ctx, f, m.files.disk) })
	}
	for i, write := range files {
		f, err := os.OpenFile(filepath.Join(dir, names[i]), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(write(f), f.Close()); err != nil {
			return nil, fmt.Errorf("cannot write %s: %w", names[i], err)
		}
	}
	return names, nil
}

func (m *machine) saveRAM(ctx context.Context, f *os.File) error {
	if err := snapshot.CopySparse(ctx, f, m.files.ram); err != nil {
		return err
	}
	if m.files.unshare == nil {
		return nil
	}
	pid := m.process.cmd.Process.Pid
	err := copyChanged(ctx, f, "/proc/"+strconv.Itoa(pid), m.files.ram)
	if main := m.Dir().Record().Main; err == nil && !main.Alive() {
		err = errors.New("QEMU has ended")
	}
	return err
}

// saveState lets QEMU write the state of the devices: to a file in memory, for which
// it pays itself, because it may be in the guest's hands.
func (m *machine) saveState(ctx context.Context, f *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, stateTimeout)
	defer cancel()
	state, err := unsealedRAM()
	if err != nil {
		return err
	}
	defer func() { _ = state.Close() }()
	// QEMU looks for one that can only be written to.
	w, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", state.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	type id struct {
		FDSet int `json:"fdset-id"`
	}
	err = m.qmp.pass(ctx, w, "add-fd", id{savedSet})
	_ = w.Close()
	if err != nil {
		return err
	}
	err = m.qmp.execute(ctx, "xen-save-devices-state", struct {
		Filename string `json:"filename"`
		Live     bool   `json:"live"`
	}{fdset(savedSet), false})
	if err := errors.Join(err, m.tell(context.WithoutCancel(ctx), "remove-fd", id{savedSet})); err != nil {
		return err
	}
	n, err := io.Copy(f, io.NewSectionReader(state, 0, maxState))
	if err == nil && n == maxState {
		err = fmt.Errorf("it is longer than %d bytes", maxState)
	}
	return err
}

// manifest is that of the machines of c here.
func (d *Driver) manifest(ctx context.Context, c *vm.Config, accel string) (snapshot.Manifest, error) {
	version, err := d.version(ctx)
	if err != nil {
		return snapshot.Manifest{}, err
	}
	cpu := emulatedCPU
	if accel == AccelKVM {
		if cpu, err = snapshot.HostCPU(); err != nil {
			return snapshot.Manifest{}, err
		}
	}
	m := snapshot.Of(c, Name, version+", "+machineType(&d.kernel.Manifest)+", "+accel, cpu)
	m.Kernel = d.bootDigest()
	if m.Image, err = snapshot.ImageDigest(ctx, c); err != nil {
		return snapshot.Manifest{}, err
	}
	m.Details = map[string]string{detailTSC: strconv.FormatUint(tsc.KHz(), 10)}
	return m, nil
}

// bootDigest names what machines start with.
func (d *Driver) bootDigest() string { return d.kernel.Digest + " " + filepath.Base(d.initramfs) }
