package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/wait"
)

// ErrRunning means that another daemon uses the state directory.
var ErrRunning = errors.New("another daemon uses this state directory")

// Names within the state directory.
const (
	socketName = "bouvet.sock"
	lockName   = "daemon.lock"
	dbName     = "state.db"
)

// lock makes this process the only daemon of a directory until unlock is called, or until
// the process ends (T33).
func lock(dir string) (unlock func(), err error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock state directory: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		pid := make([]byte, 20)
		n, _ := f.Read(pid) // without it the message says less
		return nil, fmt.Errorf("%w: process %s holds %s; end it, or use another --state-dir", ErrRunning, strings.TrimSpace(string(pid[:n])), path)
	} else if err != nil {
		return nil, fmt.Errorf("cannot lock state directory: %w", err)
	}
	if err := f.Truncate(0); err != nil {
		return nil, fmt.Errorf("cannot lock state directory: %w", err)
	}
	if _, err := f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		return nil, fmt.Errorf("cannot lock state directory: %w", err)
	}
	return func() { _ = f.Close() }, nil
}

// lockPatience is how long a daemon waits for a command that has the database open for a
// moment, or for the daemon before it.
const lockPatience = 2 * time.Second

// awaitLock is lock with patience.
func awaitLock(ctx context.Context, dir string) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	late := wait.Until(ctx, func() (bool, error) {
		unlock, err = lock(dir)
		return !errors.Is(err, ErrRunning), nil
	})
	if err == nil && late != nil {
		err = late // ended before the first try
	}
	return unlock, err
}
