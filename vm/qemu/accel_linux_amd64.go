package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

const (
	// kvmDevice is the way to KVM, which QEMU opens by this name.
	kvmDevice = "/dev/kvm"
	// trialTimeout bounds the trial. It takes a tenth of a second where it works.
	trialTimeout = 3 * time.Second
	// retryAfter is how long it counts that a trial failed: the host may have been
	// busy. That one succeeded counts until the host boots.
	retryAfter = 10 * time.Minute
	// trialMemoryMiB is the trial machine's memory.
	trialMemoryMiB = 2
	// verdictName is a file in the state directory; verdictMax bounds it, in bytes.
	verdictName = "qemu-accel.json"
	verdictMax  = 16 << 10
)

// An accelerator finds out what can run guests' instructions here, by one trial per
// boot of the host.
type accelerator struct {
	program, state, asked string

	turn    chan struct{} // whose token is in it may look and try
	settled atomic.Pointer[Acceleration]
}

func newAccelerator(program, state, asked string) (*accelerator, error) {
	switch asked {
	case "":
		asked = AccelAuto
	case AccelAuto, AccelKVM, AccelTCG:
	default:
		return nil, fmt.Errorf("%w: there is no acceleration %.40q, use auto, kvm or tcg", vm.ErrInvalidConfig, asked)
	}
	return &accelerator{program: program, state: state, asked: asked, turn: make(chan struct{}, 1)}, nil
}

// Acceleration says what runs this driver's machines. The first call may take as
// long as a trial machine may, 3 s; a later one, or one of another process on a host
// that has not booted since, takes none of that. It fails if ctx ends first, and,
// with an error wrapping vm.ErrUnsupported, if Options.Accel asks for KVM and it does
// not work.
func (d *Driver) Acceleration(ctx context.Context) (Acceleration, error) { return d.accel.find(ctx) }

func (a *accelerator) find(ctx context.Context) (Acceleration, error) {
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return Acceleration{}, ctx.Err()
	}
	if found := a.settled.Load(); found != nil {
		return a.answer(*found)
	}
	if a.asked == AccelTCG {
		return a.settle(Acceleration{Name: AccelTCG, Reason: "TCG was asked for"})
	}
	now, err := a.key()
	if err != nil {
		return a.settle(Acceleration{Name: AccelTCG, Reason: "KVM: " + err.Error()})
	}
	if v, ok := a.read(); ok && v.Key == now && v.fresh() {
		return a.settle(v.acceleration())
	}
	v := verdict{Key: now}
	if err := a.try(ctx); err != nil {
		if ctx.Err() != nil {
			return Acceleration{}, ctx.Err() // which says nothing about KVM
		}
		v.Failure, v.Tried = err.Error(), time.Now()
	}
	// Without the file the next process tries again, and that is all.
	_ = a.write(&v)
	return a.settle(v.acceleration())
}

func (a *accelerator) settle(found Acceleration) (Acceleration, error) {
	a.settled.Store(&found)
	return a.answer(found)
}

func (a *accelerator) answer(found Acceleration) (Acceleration, error) {
	if a.asked == AccelKVM && found.Name != AccelKVM {
		return found, fmt.Errorf("%w: %s", vm.ErrUnsupported, found.Reason)
	}
	return found, nil
}

// A verdict is what a trial found, as the state directory keeps it.
type verdict struct {
	Key verdictKey `json:"key"`
	// Failure is why KVM does not work; empty if it does.
	Failure string    `json:"failure,omitempty"`
	Tried   time.Time `json:"tried,omitzero"`
}

// A verdictKey is what a verdict depends on.
type verdictKey struct {
	// Boot is the host's boot, by its boot_id.
	Boot string `json:"boot"`
	// Program is QEMU's file: path, size and time of its last change.
	Program string `json:"program"`
	// Device is /dev/kvm: number, mode, owner and group; User is who starts QEMU.
	Device string `json:"device"`
	User   int    `json:"user"`
}

func (v *verdict) fresh() bool {
	age := time.Since(v.Tried)
	return v.Failure == "" || (age >= 0 && age < retryAfter)
}

func (v *verdict) acceleration() Acceleration {
	if v.Failure == "" {
		return Acceleration{Name: AccelKVM}
	}
	return Acceleration{Name: AccelTCG, Reason: "KVM: " + v.Failure}
}

// key fails where KVM cannot work, which needs no trial.
func (a *accelerator) key() (verdictKey, error) {
	device, err := os.Stat(kvmDevice)
	if errors.Is(err, fs.ErrNotExist) {
		return verdictKey{}, fmt.Errorf("%s is missing: virtualization is off in the firmware, or not given to this machine, or the module kvm_intel or kvm_amd is not loaded", kvmDevice)
	}
	if err != nil {
		return verdictKey{}, err
	}
	st, ok := device.Sys().(*syscall.Stat_t)
	if !ok || device.Mode()&fs.ModeCharDevice == 0 {
		return verdictKey{}, fmt.Errorf("%s is no device", kvmDevice)
	}
	program, err := os.Stat(a.program)
	if err != nil {
		return verdictKey{}, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return verdictKey{}, err
	}
	return verdictKey{
		Boot:    string(boot),
		Program: fmt.Sprintf("%s %d %d", a.program, program.Size(), program.ModTime().UnixNano()),
		Device:  fmt.Sprintf("%d %v %d:%d", st.Rdev, device.Mode(), st.Uid, st.Gid),
		User:    os.Geteuid(),
	}, nil
}

func (a *accelerator) path() string { return filepath.Join(a.state, verdictName) }

func (a *accelerator) read() (verdict, bool) {
	var v verdict
	info, err := os.Lstat(a.path())
	if err != nil || !info.Mode().IsRegular() || info.Size() > verdictMax {
		return v, false
	}
	data, err := os.ReadFile(a.path())
	return v, err == nil && wire.Decode(data, &v) == nil
}

func (a *accelerator) write(v *verdict) (err error) {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(a.state, "."+verdictName+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), a.path())
}

// try starts a machine with KVM that counts to a million, and fails with the reason
// if it does not.
func (a *accelerator) try(ctx context.Context) error {
	user, closed := accelCredential("kvm-trial", true)
	if closed != nil && os.Geteuid() != 0 {
		return closed
	}
	// Where the device is closed to QEMU's users, root tries as root, with a guest that
	// is all our own: to open it is a remedy only if it works.
	if err := runTrial(ctx, a.program, AccelKVM, user); err != nil {
		return err
	}
	return closed
}

// accelCredential is the user that the QEMU of machine id runs as: nil, our own, if
// we are not root. With KVM it may open kvmDevice, by its group.
func accelCredential(id string, kvm bool) (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		if !kvm {
			return nil, nil
		}
		if err := unix.Access(kvmDevice, unix.R_OK|unix.W_OK); err != nil {
			return nil, fmt.Errorf("cannot open %s: %w; add yourself to its group, as root: usermod -aG kvm USER", kvmDevice, err)
		}
		return nil, nil
	}
	user := life.User(id)
	c := &syscall.Credential{Uid: user, Gid: user}
	if !kvm {
		return c, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(kvmDevice, &st); err != nil {
		return nil, fmt.Errorf("cannot use %s: %w", kvmDevice, err)
	}
	const groupMode, otherMode = 0o060, 0o006
	switch {
	case st.Mode&otherMode == otherMode:
	case st.Mode&groupMode == groupMode && st.Gid != 0:
		c.Groups = []uint32{st.Gid}
	default:
		return nil, fmt.Errorf("%s, with mode %04o of %d:%d, is closed to the users that machines run as; run: groupadd -f -r kvm; chgrp kvm %[1]s; chmod 660 %[1]s",
			kvmDevice, st.Mode&0o7777, st.Uid, st.Gid)
	}
	return c, nil
}

// runTrial runs the trial machine.
func runTrial(ctx context.Context, program, accel string, credential *syscall.Credential) error {
	rom, err := trialFile()
	if err != nil {
		return fmt.Errorf("cannot make trial guest: %w", err)
	}
	defer func() { _ = rom.Close() }()
	call, cancel := context.WithTimeout(ctx, trialTimeout)
	defer cancel()
	said := life.NewTail(stderrTail)
	const romFD = 3
	args := append(common("guest=kvm-trial", "microvm"), processor(accel)...)
	cmd := exec.CommandContext(call, program, append(args,
		"-m", strconv.Itoa(trialMemoryMiB), "-bios", fmt.Sprintf("/proc/self/fd/%d", romFD),
		"-device", fmt.Sprintf("isa-debug-exit,iobase=%#x,iosize=1", trialPort))...)
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{rom}
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL, Credential: credential}
	if err := life.Start(cmd); err != nil {
		return fmt.Errorf("cannot start QEMU: %w", err)
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == trialStatus {
		return nil
	}
	words := life.OneLine(said.String())
	if words != "" {
		words = ": " + words
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case call.Err() != nil:
		return fmt.Errorf("trial guest did not run: nothing came of it in %v%s", trialTimeout, words)
	case err == nil:
		return fmt.Errorf("trial guest did not run: it ended too early%s", words)
	default:
		return fmt.Errorf("trial guest did not run: %w%s", err, words)
	}
}

// trialFile is the trial machine's firmware as a file in memory.
func trialFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("bouvet-trial", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "bouvet-trial")
	_, err = f.Write(trialFirmware())
	// QEMU's user opens it by its name in /proc.
	if err = errors.Join(err, f.Chmod(0o444)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
