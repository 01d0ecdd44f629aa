package testutil_test

import (
	"testing"

	"golang.org/x/sys/unix"
)

// waitExited returns when pid has ended, and leaves it unreaped.
func waitExited(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
}
