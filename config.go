package bouvet

import (
	"fmt"
	"log/slog"
	"path"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/bouvet-run/bouvet/vm"
)

// Defaults of a Config (seed 004).
const (
	DefaultLanguage  = "python"
	DefaultMemoryMiB = 256
	DefaultVCPUs     = 2
	// DefaultImage is the name of the image used when a Config names none.
	DefaultImage = "default"
	// DefaultStopGrace is how long a guest may take to stop by itself.
	DefaultStopGrace = 500 * time.Millisecond
)

// SandboxID names a sandbox, and the machine under it. It is a random UUID:
// 36 characters, never used again.
type SandboxID struct{ u uuid.UUID }

// NewSandboxID returns a fresh random ID.
func NewSandboxID() SandboxID { return SandboxID{uuid.New()} }

// ParseSandboxID reads the canonical form of an ID and no other: an ID that can
// be written in two ways can be authorised in one and used in the other.
func ParseSandboxID(s string) (SandboxID, error) {
	u, err := uuid.Parse(s)
	if err != nil || u.String() != s || u == uuid.Nil {
		return SandboxID{}, fmt.Errorf("%w: %.80q is not a sandbox ID", ErrInvalidConfig, s)
	}
	return SandboxID{u}, nil
}

// String returns the canonical form, which is a valid vm.Config.ID.
func (id SandboxID) String() string { return id.u.String() }

// IsZero reports whether id is the zero value, which names nothing.
func (id SandboxID) IsZero() bool { return id.u == uuid.Nil }

// MarshalText implements encoding.TextMarshaler.
func (id SandboxID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler, as ParseSandboxID does.
func (id *SandboxID) UnmarshalText(b []byte) error {
	parsed, err := ParseSandboxID(string(b))
	if err == nil {
		*id = parsed
	}
	return err
}

// Config describes one sandbox. The zero value is a useful one.
type Config struct {
	// ID names the sandbox; zero means a fresh one. It is for callers that must
	// write the ID down before the sandbox exists.
	ID SandboxID
	// Language is what ExecuteCode uses when it is given none; "python" when empty.
	Language string
	// MemoryMiB is the memory of the guest in MiB; 256 when 0.
	MemoryMiB int
	// DiskMiB is the size in MiB of the sandbox's writable files, where they are to be on
	// the host's disk: vm.MinDiskMiB or more, and only with a driver whose Features say
	// Disk. When 0 they are in the guest's memory.
	DiskMiB int
	// VCPUs is the number of virtual CPUs; 2 when 0.
	VCPUs int
	// Timeout bounds every command that Execute and ExecuteCode run, and is the
	// default of Cmd.Timeout. The guest ends the command's processes; should it
	// fail to, the host gives up a little later. 0 means that only the RPC timeout
	// of Execute holds.
	Timeout time.Duration

	// Image names the root file system in the manager's image store; "default"
	// when both it and RootfsPath are empty.
	Image string
	// RootfsPath is the absolute path of a root file system, instead of Image.
	RootfsPath string
	// KernelPath is the absolute path of a guest kernel, for drivers that boot one
	// (none does yet).
	KernelPath string

	// Hostname is the guest's host name; the ID when empty.
	Hostname string
	// Env holds KEY=value pairs for every command of the sandbox.
	Env []string
	// ConnectTimeout bounds the wait for the agent; 10 s when 0.
	ConnectTimeout time.Duration
	// RPCTimeout bounds each call to the agent; 30 s when 0.
	RPCTimeout time.Duration
	// StopGrace is how long Destroy lets the guest stop by itself before it is
	// ended by force: 500 ms when 0, not at all when negative.
	StopGrace time.Duration
	// Detached lets the sandbox outlive this process.
	Detached bool
	// Log receives events; the manager's when nil.
	Log *slog.Logger
}

// withDefaults returns c with each zero field set from d, then from the
// package's defaults.
func (c Config) withDefaults(d Config) Config {
	if c.ID.IsZero() {
		c.ID = NewSandboxID()
	}
	c.Language = first(c.Language, d.Language, DefaultLanguage)
	c.MemoryMiB = first(c.MemoryMiB, d.MemoryMiB, DefaultMemoryMiB)
	c.DiskMiB = first(c.DiskMiB, d.DiskMiB)
	c.VCPUs = first(c.VCPUs, d.VCPUs, DefaultVCPUs)
	c.Timeout = first(c.Timeout, d.Timeout)
	if c.Image == "" && c.RootfsPath == "" {
		c.Image, c.RootfsPath = d.Image, d.RootfsPath
		if c.RootfsPath == "" {
			c.Image = first(c.Image, DefaultImage)
		}
	}
	c.KernelPath = first(c.KernelPath, d.KernelPath)
	c.Hostname = first(c.Hostname, d.Hostname)
	if c.Env == nil {
		c.Env = d.Env
	}
	c.ConnectTimeout = first(c.ConnectTimeout, d.ConnectTimeout, DefaultConnectTimeout)
	c.RPCTimeout = first(c.RPCTimeout, d.RPCTimeout, DefaultRPCTimeout)
	c.StopGrace = first(c.StopGrace, d.StopGrace, DefaultStopGrace)
	c.Detached = c.Detached || d.Detached
	if c.Log == nil {
		c.Log = d.Log
	}
	return c
}

func first[T comparable](values ...T) T {
	var zero T
	for _, v := range values {
		if v != zero {
			return v
		}
	}
	return zero
}

// Validate reports the first thing wrong with c, as an error that wraps
// ErrInvalidConfig. Fields left zero are valid.
func (c Config) Validate() error {
	for _, p := range []struct{ name, path string }{{"root file system", c.RootfsPath}, {"kernel", c.KernelPath}} {
		if p.path != "" && (!path.IsAbs(p.path) || strings.ContainsRune(p.path, 0)) {
			return fmt.Errorf("%w: %s %.200q is not an absolute path", ErrInvalidConfig, p.name, p.path)
		}
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"timeout", c.Timeout}, {"connect timeout", c.ConnectTimeout}, {"RPC timeout", c.RPCTimeout}} {
		if d.d < 0 {
			return fmt.Errorf("%w: %s of %v is negative", ErrInvalidConfig, d.name, d.d)
		}
	}
	if c.Image != "" && c.RootfsPath != "" {
		return fmt.Errorf("%w: both an image (%.80q) and a root file system (%.200q) are given", ErrInvalidConfig, c.Image, c.RootfsPath)
	}
	for _, kv := range c.Env {
		if k, _, ok := strings.Cut(kv, "="); !ok || k == "" || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("%w: environment entry %.80q is not KEY=value", ErrInvalidConfig, kv)
		}
	}
	// The machine's own bounds, with a path in place of the image's.
	filled := c.withDefaults(Config{})
	machine := filled.machine(Image{Path: "/image"})
	if err := machine.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return nil
}

// machine returns the driver's part of c, which has its defaults.
func (c Config) machine(image Image) vm.Config {
	return vm.Config{
		ID:          c.ID.String(),
		Image:       image.Path,
		ImageDigest: image.Digest,
		Hostname:    c.Hostname,
		MemoryMiB:   c.MemoryMiB,
		DiskMiB:     c.DiskMiB,
		VCPUs:       c.VCPUs,
		Detached:    c.Detached,
		Log:         c.Log,
	}
}
