package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A replacement is a new file that takes the place of its target when it is whole.
type replacement struct {
	file      *os.File
	path      string // of the new file; beside the target
	target    string
	mode      uint32
	uid, gid  int // -1: as they are
	mtime     time.Time
	committed bool
}

// newReplacement makes a file beside target. A symbolic link is followed, so that
// the file it leads to is replaced. An existing file's mode and owner are kept.
func newReplacement(target string) (*replacement, error) {
	if resolved, err := filepath.EvalSymlinks(target); err == nil {
		target = resolved
	}
	r := &replacement{target: target, mode: 0o666 &^ umask(), uid: -1, gid: -1}
	info, err := os.Lstat(target)
	switch {
	case err == nil && info.Mode()&fs.ModeSymlink == 0: // a dangling link is replaced itself
		if err := regular(info); err != nil {
			return nil, err
		}
		r.like(info)
		r.mtime = time.Time{}
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	// A short name: the target's may already be as long as a name can be.
	r.path = filepath.Join(filepath.Dir(target), ".bouvet-"+rand.Text())
	r.file, err = os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// like gives the new file the mode, owner and time of an old one.
func (r *replacement) like(info os.FileInfo) {
	r.mtime = info.ModTime()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		r.mode, r.uid, r.gid = st.Mode&0o7777, int(st.Uid), int(st.Gid)
	}
}

// commit puts the file into its target's place. A mode or owner given goes before
// the old file's.
func (r *replacement) commit(mode *uint32, o *owner) error {
	if mode == nil {
		mode = &r.mode
	}
	if o == nil {
		o = &owner{r.uid, r.gid}
	}
	if err := applyTo(r.file, mode, o); err != nil {
		return err
	}
	if !r.mtime.IsZero() {
		tv := []unix.Timeval{unix.NsecToTimeval(time.Now().UnixNano()), unix.NsecToTimeval(r.mtime.UnixNano())}
		if err := unix.Futimes(int(r.file.Fd()), tv); err != nil {
			return fmt.Errorf("cannot set time: %w", err)
		}
	}
	if err := r.file.Close(); err != nil {
		return err
	}
	if err := os.Rename(r.path, r.target); err != nil {
		return err
	}
	r.committed = true
	return nil
}

// discard removes the file unless it was committed.
func (r *replacement) discard() {
	if r.committed {
		return
	}
	_ = r.file.Close()
	_ = os.Remove(r.path)
}
