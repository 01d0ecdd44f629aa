package rundir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
)

// Carries reports whether arg is on the command line of process pid. An argument
// that names a machine's directory marks its processes, for nobody else has it.
func Carries(pid int, arg string) bool {
	cmdline, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && slices.ContainsFunc(bytes.Split(cmdline, []byte{0}), func(a []byte) bool { return string(a) == arg })
}

// Carriers are the processes, zombies apart, that carry arg on their command line.
func Carriers(arg string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("cannot list processes: %w", err)
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != os.Getpid() && Carries(pid, arg) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// KillCarriers kills every process that carries arg, until there are none, waits
// for their ends and returns those it found.
func KillCarriers(ctx context.Context, arg string) (killed []int, err error) {
	var dying []*os.File // a process loses its command line before it ends
	defer func() {
		for _, f := range dying {
			_ = f.Close()
		}
	}()
	err = wait.Until(ctx, func() (bool, error) {
		pids, err := Carriers(arg)
		if err != nil {
			return false, err
		}
		for _, pid := range pids {
			if slices.Contains(killed, pid) {
				continue
			}
			fd, err := unix.PidfdOpen(pid, 0)
			if errors.Is(err, unix.ESRCH) || (err == nil && !Carries(pid, arg)) {
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
			if over, err := HasEnded(f.Fd()); err != nil || !over {
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

// HasEnded reports whether the process of a pidfd has ended.
func HasEnded(pidfd uintptr) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}} //nolint:gosec // a descriptor fits
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return n > 0, err
		}
	}
}
