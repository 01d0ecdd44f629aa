package rundir

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// reserveSize is how many descriptors are kept back: removing a tree holds one for
// each of its levels, and ending its processes two beside them.
const reserveSize = 8

// reserve holds descriptors, as long as a Dir is held, for when there are no more
// to be had: nothing is made that could not be taken down again.
var reserve reserved

type reserved struct {
	mu    sync.Mutex
	users int
	fds   []int
}

// join completes the reserve for one more Dir. It fails when there is nothing left
// to hold back.
func (r *reserved) join() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.fillLocked()
	if err == nil {
		r.users++
	} else if r.users == 0 {
		r.releaseLocked()
	}
	return err
}

// leave is join's counterpart; the last Dir gives the reserve back.
func (r *reserved) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.users--
	if r.users == 0 {
		r.releaseLocked()
	}
}

func (r *reserved) fillLocked() error {
	for len(r.fds) < reserveSize {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot keep descriptors in reserve for a machine's removal: %w", err)
		}
		r.fds = append(r.fds, fd)
	}
	return nil
}

func (r *reserved) releaseLocked() {
	for _, fd := range r.fds {
		_ = unix.Close(fd)
	}
	r.fds = nil
}

// WithReserve calls f, and calls it once more, with the descriptors that
// each Dir keeps in reserve set free, if there were not enough of them the first time. So f
// must be one that can be repeated, and its error must wrap its cause.
func WithReserve(f func() error) error {
	err := f()
	if !errors.Is(err, unix.EMFILE) && !errors.Is(err, unix.ENFILE) {
		return err
	}
	reserve.mu.Lock()
	defer reserve.mu.Unlock()
	reserve.releaseLocked()
	defer func() {
		if reserve.users > 0 {
			// What cannot be refilled now is refilled by the next Create, or fails it.
			_ = reserve.fillLocked()
		}
	}()
	return f()
}
