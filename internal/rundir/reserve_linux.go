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
	mu     sync.Mutex
	users  int // Dirs that are held
	spends int // calls that need what was kept back, now
	fds    []int
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
	if r.spends > 0 {
		return fmt.Errorf("cannot keep descriptors in reserve for a machine's removal: %w", unix.EMFILE)
	}
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
	reserve.spend()
	defer reserve.save()
	return f()
}

// spend sets what is kept back free, until save.
func (r *reserved) spend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spends++
	r.releaseLocked()
}

func (r *reserved) save() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spends--
	if r.users > 0 {
		// What cannot be kept back now is by the next Create, which fails otherwise.
		_ = r.fillLocked()
	}
}
