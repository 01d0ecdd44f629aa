package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	recordVersion = 1
	// maxRecord bounds a record on disk, in bytes.
	maxRecord = 256 << 10
)

// ErrUnreadable means that a record cannot be understood. Its directory is left
// alone: what cannot be parsed is not ours to delete.
var ErrUnreadable = errors.New("record is unreadable")

// States of a machine, as far as cleaning up after it is concerned.
const (
	StateCreating   = "creating"
	StateRunning    = "running"
	StateDestroying = "destroying"
)

// Kinds of resources.
const (
	KindCgroup  = "cgroup"
	KindMount   = "mount"
	KindPath    = "path"
	KindProcess = "process"
)

// A Record is what machine.json says: whose machine this is and what has been
// made for it outside the directory, or is about to be.
type Record struct {
	Version  int    `json:"version"`
	ID       string `json:"id"`
	Driver   string `json:"driver"`
	State    string `json:"state"`
	Detached bool   `json:"detached"`
	// Owner is the process that created the directory.
	Owner Process `json:"owner"`
	// Main is the machine's main process, once there is one.
	Main      Process    `json:"main,omitzero"`
	Resources []Resource `json:"resources,omitempty"`
}

// A Resource is something outside the directory that goes with the machine.
type Resource struct {
	Kind string `json:"kind"`
	Path string `json:"path"`
}

// Add appends resources that are not in the record yet.
func (r *Record) Add(res ...Resource) {
	for _, x := range res {
		if !slices.Contains(r.Resources, x) {
			r.Resources = append(r.Resources, x)
		}
	}
}

func (r *Record) clone() Record {
	c := *r
	c.Resources = slices.Clone(r.Resources)
	return c
}

// write replaces the record of dir. The rename makes it whole or not there; no
// fsync, because a record does not outlive the boot of the machines it names.
func (r *Record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, recordName+".tmp")
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, recordName))
}

// readRecord reads the record of dir, strictly: an unknown field may name a
// resource this version would not clean up.
func readRecord(dir string) (Record, error) {
	// Without O_NONBLOCK a FIFO of that name would hold up every sweep.
	f, err := os.OpenFile(filepath.Join(dir, recordName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Record{}, errors.Join(fmt.Errorf("%w: it is not a regular file", ErrUnreadable), err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecord+1)) //nolint:forbidigo // limited; our own file
	if err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if len(data) > maxRecord {
		return Record{}, fmt.Errorf("%w: larger than %d bytes", ErrUnreadable, maxRecord)
	}
	var r Record
	dec := json.NewDecoder(bytes.NewReader(data)) //nolint:forbidigo // limited; our own file
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	switch {
	case dec.More():
		return Record{}, fmt.Errorf("%w: data after the record", ErrUnreadable)
	case r.Version != recordVersion:
		return Record{}, fmt.Errorf("%w: version %d, not %d", ErrUnreadable, r.Version, recordVersion)
	case r.ID != filepath.Base(dir):
		return Record{}, fmt.Errorf("%w: it is of machine %.80q", ErrUnreadable, r.ID)
	}
	return r, nil
}
