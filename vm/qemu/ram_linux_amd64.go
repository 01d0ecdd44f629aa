package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// sealSize seals the size of a machine's memory, so that nobody who maps it is hurt.
const sealSize = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// newRAM makes an empty memory of size bytes.
func newRAM(size int64) (_ *os.File, err error) {
	f, err := unsealedRAM()
	if err == nil {
		err = errors.Join(f.Truncate(size), addSeals(f, sealSize|unix.F_SEAL_SEAL))
	}
	if err != nil {
		closeFiles(f)
		return nil, fmt.Errorf("cannot make guest memory: %w", err)
	}
	return f, nil
}

// loadRAM copies a snapshot's memory of size bytes into one that nobody can write to.
func loadRAM(ctx context.Context, path string, size int64) (_ *os.File, err error) {
	from, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot load guest memory: %w", err)
	}
	defer func() { _ = from.Close() }()
	f, err := unsealedRAM()
	if err == nil {
		err = snapshot.CopySparse(ctx, f, from)
	}
	if err == nil {
		err = wantSize(f, size)
	}
	if err == nil {
		err = addSeals(f, sealSize|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL)
	}
	if err != nil {
		closeFiles(f)
		return nil, fmt.Errorf("cannot load guest memory: %w", err)
	}
	return f, nil
}

func wantSize(f *os.File, size int64) error {
	info, err := f.Stat()
	if err == nil && info.Size() != size {
		err = fmt.Errorf("%w: its memory has %d bytes, want %d", vm.ErrBadSnapshot, info.Size(), size)
	}
	return err
}

// unsealedRAM makes a file without a name.
func unsealedRAM() (*os.File, error) {
	fd, err := unix.MemfdCreate("bouvet-ram", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "guest memory"), nil
}

func addSeals(f *os.File, seals int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return err
}

// rams holds the memories that running machines were restored from, one for all
// machines of a snapshot: QEMU opens what it maps for writing even where it maps it
// copy-on-write, so it does not get the snapshot's file but a sealed copy in memory.
type rams struct {
	mu  sync.Mutex
	all map[string]*sharedRAM // by digest
}

// A sharedRAM is a memory that is only read.
type sharedRAM struct {
	file   *os.File
	filled chan struct{} // closed when file is whole or err is set
	err    error
	users  int // guarded by rams.mu
}

// get returns the memory with this digest, which fill writes if nobody uses it yet.
// The caller puts it back with put.
func (r *rams) get(ctx context.Context, digest string, fill func() (*os.File, error)) (*sharedRAM, error) {
	for {
		r.mu.Lock()
		if r.all == nil {
			r.all = map[string]*sharedRAM{}
		}
		s := r.all[digest]
		first := s == nil
		if first {
			s = &sharedRAM{filled: make(chan struct{})}
			r.all[digest] = s
		}
		s.users++
		r.mu.Unlock()
		if first {
			r.fill(digest, s, fill)
		}
		select {
		case <-s.filled:
		case <-ctx.Done():
			r.put(digest, s)
			return nil, ctx.Err()
		}
		if s.err == nil {
			return s, nil
		}
		r.put(digest, s)
		if first || ctx.Err() != nil {
			return nil, s.err
		}
		// Another's attempt has failed, maybe because its caller gave up.
	}
}

func (r *rams) fill(digest string, s *sharedRAM, fill func() (*os.File, error)) {
	file, err := fill()
	r.mu.Lock()
	defer r.mu.Unlock()
	s.file, s.err = file, err
	if err != nil {
		delete(r.all, digest)
	}
	close(s.filled)
}

// put gives back what get has returned.
func (r *rams) put(digest string, s *sharedRAM) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s.users--
	if s.users > 0 {
		return
	}
	if r.all[digest] == s {
		delete(r.all, digest)
	}
	closeFiles(s.file)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
