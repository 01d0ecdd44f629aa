package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/rundir"
)

// rootFlag is the argument that every process of a machine carries on its command
// line, from helper to sentry: unique to the machine, for its directory is.
func rootFlag(dir string) string { return "--root=" + filepath.Join(dir, "runsc") }

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
	if err == nil && !carries(pid, rootFlag(dir)) {
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
		over, pollErr = hasEnded(fd)
		return over || pollErr != nil
	})
	return errors.Join(err, pollErr)
}

// hasEnded reports whether the process of a pidfd has ended.
func hasEnded(pidfd uintptr) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor fits
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
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

// carries reports whether arg is on the command line of process pid.
func carries(pid int, arg string) bool {
	cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && slices.ContainsFunc(bytes.Split(cmdline, []byte{0}), func(a []byte) bool { return string(a) == arg })
}

// carriers are the processes, zombies apart, that carry arg on their command line.
func carriers(arg string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && carries(pid, arg) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// killCarriers kills every process that carries arg, until there are none, waits
// for their ends and returns those it found.
func killCarriers(ctx context.Context, arg string) (killed []int, err error) {
	var dying []*os.File // a process loses its command line before it ends
	defer func() { closeFiles(dying...) }()
	err = poll(ctx, func() (bool, error) {
		pids, err := carriers(arg)
		if err != nil {
			return false, err
		}
		for _, pid := range pids {
			if slices.Contains(killed, pid) {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if errors.Is(err, unix.ESRCH) || (err == nil && !carries(pid, arg)) {
				_ = unix.Close(fd)
				continue
			}
			if err != nil {
				return false, fmt.Errorf("cannot open process %d: %w", pid, err)
			}
			dying = append(dying, os.NewFile(uintptr(fd), "pidfd"))
			killed = append(killed, pid)
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				return false, fmt.Errorf("cannot kill process %d: %w", pid, err)
			}
		}
		for _, f := range dying {
			if over, err := hasEnded(f.Fd()); err != nil || !over {
				return false, err
			}
		}
		return len(pids) == 0, nil
	})
	if err != nil {
		return killed, fmt.Errorf("cannot end processes of %s: %w", arg, err)
	}
	return killed, nil
}

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
