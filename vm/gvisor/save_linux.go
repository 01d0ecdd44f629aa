package gvisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	sentry "gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
)

// A stateSave takes a sentry's state through a pipe and puts it into a file. Written by
// the sentry itself, it would count as the machine's memory, which on a file system in
// memory ends the machine; it could not be bounded; and nobody could call it off.
type stateSave struct {
	file  *os.File
	limit int64    // in bytes
	r, w  *os.File // the pipe
}

// stateOverheadMiB is what a state may have on top of twice the guest's memory.
const stateOverheadMiB = 256

// pipeSize is that of the pipe, in bytes, where the host allows it.
const pipeSize = 1 << 20

func openSave(dir string, memoryMiB int) (*stateSave, error) {
	file, err := os.OpenFile(filepath.Join(dir, stateFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("cannot make pipe: %w", err)
	}
	_, _ = unix.FcntlInt(uintptr(fds[0]), unix.F_SETPIPE_SZ, pipeSize)
	// Only our end: the sentry waits in its writes.
	err = unix.SetNonblock(fds[0], true)
	s := &stateSave{
		file: file, limit: (2*int64(memoryMiB) + stateOverheadMiB) << 20,
		r: os.NewFile(uintptr(fds[0]), "state"), w: os.NewFile(uintptr(fds[1]), "state"),
	}
	if err != nil {
		closeFiles(s.file, s.r, s.w)
		return nil, fmt.Errorf("cannot make pipe: %w", err)
	}
	return s, nil
}

// abort makes the sentry's next write fail, which ends its saving.
func (s *stateSave) abort() { _ = s.r.Close() }

// run lets the sentry of m save itself, and closes everything.
func (s *stateSave) run(m *machine) error {
	copied := make(chan error, 1)
	go func() { copied <- s.copy() }()
	err := m.call(boot.ContMgrCheckpoint, &sentry.SaveOpts{
		Metadata:    statefile.CompressionLevelNone.ToMetadata(),
		FilePayload: urpc.FilePayload{Files: []*os.File{s.w}},
		Resume:      true,
	})
	_ = s.w.Close() // the sentry has closed its own
	if copyErr := <-copied; copyErr != nil {
		return copyErr // the sentry knows only that its pipe is broken
	}
	return err
}

func (s *stateSave) copy() error {
	n, err := io.Copy(s.file, io.LimitReader(s.r, s.limit+1))
	if err == nil && n > s.limit {
		err = fmt.Errorf("its state has more than %d bytes", s.limit)
	}
	return errors.Join(err, s.r.Close(), s.file.Close())
}
