package gvisor

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/rundir"
)

// rootFlag is the argument that every process of a machine carries on its command
// line, from helper to sentry: unique to the machine, for its directory is.
func rootFlag(dir string) string { return "--root=" + filepath.Join(dir, stateDir) }

// A process is one held by a descriptor, which stays its own when the number is
// used again.
type process struct {
	rundir.Process
	fd *os.File // pidfd
}

// openSentry opens the process pid and makes sure that it is the main process of
// the machine in dir.
func openSentry(pid int, dir string) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot open sentry %d: %w", pid, err)
	}
	p := &process{fd: os.NewFile(uintptr(fd), "pidfd")}
	// What is read now is of the process that fd means, provided that it still
	// lives afterwards.
	p.Process, err = rundir.Identify(pid)
	if err == nil && !rundir.Carries(pid, rootFlag(dir)) {
		err = errors.New("it is another process")
	}
	if err == nil {
		err = unix.PidfdSendSignal(fd, 0, nil, 0)
	}
	if err != nil {
		_ = p.fd.Close()
		return nil, fmt.Errorf("cannot identify sentry %d: %w", pid, err)
	}
	return p, nil
}

// wait returns once the process has ended.
func (p *process) wait() error {
	raw, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = raw.Read(func(fd uintptr) bool {
		var over bool
		over, pollErr = rundir.HasEnded(fd)
		return over || pollErr != nil
	})
	return errors.Join(err, pollErr)
}

// kill sends SIGKILL; a process that has ended already is fine.
func (p *process) kill() error {
	err := unix.PidfdSendSignal(int(p.fd.Fd()), unix.SIGKILL, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot kill sentry %d: %w", p.PID, err)
	}
	return nil
}

func (p *process) close() { _ = p.fd.Close() }

// readPIDFile reads the sentry's number that the helper wrote.
func readPIDFile(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("cannot find sentry: %w", err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("cannot find sentry: %w", fs.ErrInvalid)
	}
	return pid, nil
}
