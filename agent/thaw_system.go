package agent

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Files that tell one machine from another, below the root.
const (
	machineIDFile  = "etc/machine-id"
	randomSeedFile = "var/lib/systemd/random-seed"
)

// Bounds of what the clock of a kernel that is not ours may be off.
const (
	// clockClose is near enough: it is what a message may take.
	clockClose = 10 * time.Millisecond
	// clockForeign is near enough where the clock is the host's and cannot be set: what
	// differs there is only how long the message took.
	clockForeign = 5 * time.Second
)

// kernelSystem is the machine of this program.
type kernelSystem struct {
	root string // "/"
}

// Sync implements System.
func (y kernelSystem) Sync() error {
	dir, err := os.Open(y.root)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(dir.Fd())))
}

// AddEntropy implements System.
func (kernelSystem) AddEntropy(seed []byte) error { return addEntropy(seed) }

// SetClock implements System.
func (kernelSystem) SetClock(now time.Time) error {
	off := time.Since(now).Abs()
	if off <= clockClose {
		return nil
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts)
	if errors.Is(err, unix.EPERM) && off <= clockForeign {
		return nil // gVisor: the clock is the host's
	}
	if err != nil {
		return fmt.Errorf("it is off by %v: %w", off, os.NewSyscallError("clock_settime", err))
	}
	return nil
}

// SetHostname implements System.
func (kernelSystem) SetHostname(name string) error {
	return os.NewSyscallError("sethostname", unix.Sethostname([]byte(name)))
}

// RenewMachineID implements System. A link (to /run, say) is left alone: what it
// leads to is made at boot.
func (y kernelSystem) RenewMachineID() error {
	path := filepath.Join(y.root, machineIDFile)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
		return nil
	}
	if err != nil {
		return err
	}
	var id [16]byte
	_, _ = rand.Read(id[:])                         // never fails
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // as machine-id(5) has it: a random UUID
	file, err := newReplacement(path)
	if err != nil {
		return err
	}
	defer file.discard()
	if _, err := file.file.WriteString(hex.EncodeToString(id[:]) + "\n"); err != nil {
		return err
	}
	mode := uint32(info.Mode().Perm())
	return file.commit(&mode, nil)
}

// ForgetSeed implements System.
func (y kernelSystem) ForgetSeed() error {
	if err := os.Remove(filepath.Join(y.root, randomSeedFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
