package testutil

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
)

// stopTimeout bounds the time in which the threads of a process stop.
const stopTimeout = 10 * time.Second

// Stop stops a process, with SIGSTOP, and returns when none of its threads runs any
// more: kill(2) does not wait for that.
func Stop(t testing.TB, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatalf("cannot stop process %d: %v", pid, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := wait.Until(ctx, func() (bool, error) { return allStopped(pid) }); err != nil {
		t.Fatalf("process %d does not stop: %v", pid, err)
	}
}

func allStopped(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(threads) == 0 {
		return false, errors.Join(err, os.ErrProcessDone)
	}
	for _, path := range threads {
		stat, err := os.ReadFile(path)
		if err != nil {
			return false, nil //nolint:nilerr // a thread that has just ended; look again.
		}
		// The state follows the name, which is in parentheses and may hold any others.
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
		if !strings.HasPrefix(rest, "T") {
			return false, nil
		}
	}
	return true, nil
}
