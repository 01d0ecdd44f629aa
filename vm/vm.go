// Package vm is the floor between the host library and the things that can run
// a guest: one small interface, which every driver implements and which the
// conformance suite in vm/vmtest holds them to.
package vm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"regexp"
	"time"
)

// Limits that Validate enforces on a Config.
const (
	// MinMemoryMiB is the least memory a machine may have: below it an
	// interpreter does not start.
	MinMemoryMiB = 32
	// MaxMemoryMiB bounds the memory of one machine (1 TiB).
	MaxMemoryMiB = 1 << 20
	// MinDiskMiB and MaxDiskMiB bound Config.DiskMiB where it is not 0 (1 TiB).
	MinDiskMiB = 16
	MaxDiskMiB = 1 << 20
	// MaxConsole bounds what Machine.Console keeps, in bytes.
	MaxConsole = 64 << 10
	// MaxVCPUs bounds the number of virtual CPUs of one machine.
	MaxVCPUs = 256
)

// Errors a driver reports; they are to be found with errors.Is.
var (
	// ErrGone means that the machine has ended: killed, crashed or destroyed.
	ErrGone = errors.New("machine is gone")
	// ErrOutOfMemory means that the machine has ended because it took more memory than
	// the host lets it have. It comes with ErrGone.
	ErrOutOfMemory = errors.New("machine ran out of memory")
	// ErrUnsupported means that this driver, or this host, cannot do what was asked.
	ErrUnsupported = errors.New("not supported")
	// ErrExists means that a machine with this ID already exists.
	ErrExists = errors.New("machine already exists")
	// ErrBadSnapshot means that a snapshot was refused before anything was started:
	// it is damaged or incomplete, or of another driver, version, processor, image or
	// shape of machine. The error says which.
	ErrBadSnapshot = errors.New("snapshot cannot be used")
	// ErrInvalidConfig means that a Config was refused before anything was made.
	ErrInvalidConfig = errors.New("invalid machine configuration")
)

// Config describes one machine.
type Config struct {
	// ID names the machine: 8 to 64 characters of [a-z0-9-], not beginning with
	// a dash. IDs must be of a fixed length and random, and are never used again:
	// runsc matches IDs by prefix.
	ID string
	// Image is the absolute path of the root file system, an uncompressed EROFS
	// image. It is opened read-only and shared by every machine that uses it.
	Image string
	// ImageDigest is "sha256:" and the hex digest of Image, if the caller knows it. A
	// snapshot remembers it; without it the driver computes it then.
	ImageDigest string
	// Hostname is the guest's host name; empty means the ID.
	Hostname string
	// MemoryMiB is the guest's memory in MiB, its writable layer included where
	// that lives in memory. The driver adds its own overhead to the host's limit.
	MemoryMiB int
	// DiskMiB is the size in MiB of the guest's writable layer, if that is to be a
	// sparse file on the host's disk instead of the guest's memory: 0, or MinDiskMiB
	// to MaxDiskMiB where Features.Disk says so.
	DiskMiB int
	// VCPUs is the number of virtual CPUs the guest sees and may use.
	VCPUs int
	// Detached lets the machine outlive the process that created it. Without it
	// the machine ends when its owner does, however that dies.
	Detached bool
	// Log receives the driver's events; nil means none.
	Log *slog.Logger
}

var idPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{7,63}$`)

// ValidID reports whether id may name a machine. IDs become file names and
// cgroup names, so this is checked before anything is made of them.
func ValidID(id string) bool { return idPattern.MatchString(id) }

// Validate reports the first thing wrong with c, as an error that wraps
// ErrInvalidConfig.
func (c *Config) Validate() error {
	switch {
	case !ValidID(c.ID):
		return fmt.Errorf("%w: id %.80q is not 8 to 64 characters of a-z, 0-9 and dash", ErrInvalidConfig, c.ID)
	case c.Image == "" || c.Image[0] != '/':
		return fmt.Errorf("%w: image %.200q is not an absolute path", ErrInvalidConfig, c.Image)
	case c.MemoryMiB < MinMemoryMiB || c.MemoryMiB > MaxMemoryMiB:
		return fmt.Errorf("%w: memory of %d MiB is outside %d..%d", ErrInvalidConfig, c.MemoryMiB, MinMemoryMiB, MaxMemoryMiB)
	case c.VCPUs < 1 || c.VCPUs > MaxVCPUs:
		return fmt.Errorf("%w: %d vCPUs are outside 1..%d", ErrInvalidConfig, c.VCPUs, MaxVCPUs)
	case c.DiskMiB != 0 && (c.DiskMiB < MinDiskMiB || c.DiskMiB > MaxDiskMiB):
		return fmt.Errorf("%w: disk of %d MiB is outside %d..%d", ErrInvalidConfig, c.DiskMiB, MinDiskMiB, MaxDiskMiB)
	case c.ImageDigest != "" && !digestPattern.MatchString(c.ImageDigest):
		return fmt.Errorf("%w: image digest %.100q is not sha256: and 64 hexadecimal digits", ErrInvalidConfig, c.ImageDigest)
	case c.Hostname != "" && !hostnamePattern.MatchString(c.Hostname):
		return fmt.Errorf("%w: host name %.80q is not a DNS label", ErrInvalidConfig, c.Hostname)
	}
	return nil
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

var hostnamePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Features says what a driver can do on this host. A caller asks before it
// relies on one; a method whose feature is absent returns ErrUnsupported.
type Features struct {
	// Isolation names the boundary: "microvm" or "gvisor".
	Isolation string `json:"isolation"`
	// MemoryLimit and CPULimit say whether the host enforces Config.MemoryMiB
	// and Config.VCPUs (a rootless gVisor without a delegated cgroup cannot).
	MemoryLimit bool `json:"memory_limit"`
	CPULimit    bool `json:"cpu_limit"`
	// Pause says whether machines can be paused and resumed.
	Pause bool `json:"pause"`
	// Snapshot says whether machines can be saved and restored.
	Snapshot bool `json:"snapshot"`
	// SnapshotResets says that to save a machine resets its streams: they end with an
	// error, and the machine answers new ones.
	SnapshotResets bool `json:"snapshot_resets"`
	// Disk says whether Config.DiskMiB can be other than 0.
	Disk bool `json:"disk"`
	// Detached says whether machines can outlive their creator.
	Detached bool `json:"detached"`
	// Base is not empty where a machine is there much sooner when it is restored from the
	// snapshot of one that has just started than when it starts itself. It names all that
	// such a snapshot depends on besides the Config: the guest's kernel, the agent.
	Base string `json:"base,omitempty"`
}

// A Driver creates machines of one kind. Its methods are safe for concurrent use.
type Driver interface {
	// Name is the driver's name as users write it: "gvisor", "qemu", "firecracker".
	Name() string

	// Features says what this driver can do on this host. It MUST NOT block and
	// MUST NOT start anything.
	Features() Features

	// Create makes and starts a machine and returns once its channel can be
	// dialled; it does not wait for the guest's agent, whose readiness is an
	// answered ping. It MUST validate c first and MUST record on disk that it is
	// about to make something before it makes it. ctx bounds this call alone: a
	// machine MUST live on after ctx ends. When Create fails or ctx ends first,
	// it MUST have removed everything it made, processes included, before it
	// returns. A second machine of the same ID MUST be refused with ErrExists.
	Create(ctx context.Context, c Config) (Machine, error)

	// Restore makes a machine of what Machine.Snapshot wrote into dir, an absolute
	// path, and returns once its channel can be dialled. It does what Create does, with
	// Create's promises; besides, whatever is wrong with the snapshot MUST be an error
	// wrapping ErrBadSnapshot, before anything is started. The machine is a new one:
	// c.ID is new, c's memory, processors, disk and image MUST be those of the
	// snapshot, c.Hostname is not looked at. What is in dir is only read, MUST stay
	// until the machine has ended, and serves any number of machines at once. The guest
	// goes on where it was, so a caller lets the agent thaw it (method thaw) before
	// anything else.
	Restore(ctx context.Context, c Config, dir string) (Machine, error)

	// Sweep finds what processes that no longer live have left behind (machines
	// that are not Detached, and half-made or half-destroyed ones) and, if remove
	// is set, removes it. It MUST NOT touch anything that belongs to a living
	// process, and MUST go on after an error, which the leftover then carries.
	Sweep(ctx context.Context, remove bool) ([]Leftover, error)
}

// A Leftover is something a dead owner left behind.
type Leftover struct {
	// Kind is "process", "directory", "cgroup" or "mount".
	Kind string `json:"kind"`
	// Machine is the ID of the machine it belonged to, if known.
	Machine string `json:"machine,omitempty"`
	// What names it: a pid, a path.
	What string `json:"what"`
	// Removed says whether it is gone now.
	Removed bool `json:"removed"`
	// Error says why it could not be removed.
	Error string `json:"error,omitempty"`
}

// A BulkDialer is a Machine that has a quicker way for streams that carry much.
type BulkDialer interface {
	// DialBulk is Dial, for streams of some MiB and more. There are few of them at once:
	// it MUST fail at once, with an error wrapping ErrUnsupported, when all are taken or
	// there are none, and the caller uses Dial then.
	DialBulk(ctx context.Context, port uint32) (net.Conn, error)
}

// A Machine is one running guest. Its methods are safe for concurrent use.
type Machine interface {
	// ID is the machine's ID as given to Create.
	ID() string

	// Dial opens a stream to a port of the guest's agent (wire.PortRPC,
	// wire.PortExec). ctx bounds the handshake alone. A stream is a net.Conn with
	// working deadlines; closing it is seen by the agent as a disconnect. Dial
	// MUST fail at once with an error wrapping ErrGone once the machine has ended,
	// and MUST fail with ctx's cause (context.Cause) when ctx ends first. A success does
	// not mean that the agent answers: only an answered ping does.
	Dial(ctx context.Context, port uint32) (net.Conn, error)

	// Pause stops the guest's processors. Its streams stay open and lose nothing; a
	// Dial waits. It is idempotent, as is Resume, and fails with an error wrapping
	// ErrGone once the machine has ended. A paused machine can be destroyed.
	Pause(ctx context.Context) error

	// Resume lets the guest's processors go on.
	Resume(ctx context.Context) error

	// Snapshot writes the machine's whole state into dir, an absolute path of an
	// existing empty directory that only its owner can use. Meanwhile the guest stands
	// still; then the machine is what it was before, running or paused, with the same
	// streams unless Features.SnapshotResets says otherwise. When it fails or ctx ends first, dir MUST be empty again. The guest's
	// processes are saved as they are: a caller lets the agent freeze them before
	// (method freeze), so that none of them runs in a copy that is not thawed yet.
	Snapshot(ctx context.Context, dir string) error

	// Console returns the end of what the guest wrote to its console, at most
	// MaxConsole bytes, or the beginning where the driver cannot keep the end. It works
	// after the machine's end, until Destroy. The bytes are the guest's, so hostile.
	Console() []byte

	// Done is closed once the machine has ended for whatever reason: its last
	// process is gone. It MUST be closed within a second of a kill -9 of the
	// machine's main process.
	Done() <-chan struct{}

	// Err says why the machine ended, once Done is closed: nil after Destroy,
	// else an error wrapping ErrGone. Before that it is nil.
	Err() error

	// Destroy ends the machine, gracefully if grace is positive and it obeys in
	// that time, else by force, and removes every trace: processes, directories,
	// cgroups, mounts. Streams still open are reset. It MUST be idempotent, safe
	// for concurrent use, and MUST return only when nothing is left; a caller
	// whose ctx ended may call it again. It MUST work whatever state the guest
	// is in.
	Destroy(ctx context.Context, grace time.Duration) error
}
