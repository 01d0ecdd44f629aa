package firecracker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vm"
)

// Names in a jail, whose root Firecracker sees as "/". Nothing may be named like the
// vsock's socket with an underscore and digits behind it: the guest reaches it.
const (
	jailKernel    = "kernel"
	jailInitramfs = "initramfs"
	jailImage     = "image"
	jailDisk      = "disk"
	jailConsole   = "console"
	jailVsock     = "v.sock"
	jailState     = "state"
	jailMemory    = "memory"
	// What Firecracker writes of the machine; its own state may be mounted already.
	jailSavedState, jailSavedMemory = "saved.state", "saved.memory"
	// jailID is the machine's name for Firecracker, which is alone in its world.
	jailID = "machine"
)

// jailBase is the directory of a machine's jail in the machine's own.
const jailBase = "jail"

// apiSocket is the path of the API's socket in the jail of the machine in dir. It is
// on the command lines of all of the machine's processes, and on no others.
func apiSocket(dir string) string { return "/run/" + filepath.Base(dir) + ".api" }

// A jail is the root directory of one Firecracker. From the start of the jailer on it
// belongs to a user of the machine's own, so nothing in it is opened by a path that
// he could have bent (threat T44).
type jail struct {
	base string   // what the jailer makes it in
	path string   // the root directory
	root *os.File // the same
	user uint32
	api  string // the API's socket, relative to root
}

// makeJail makes the jail for program in dir. There is none yet, for dir is new.
func makeJail(dir *rundir.Dir, program string, user uint32) (_ *jail, err error) {
	j := &jail{base: dir.Join(jailBase), user: user, api: apiSocket(dir.Path())[1:]}
	j.path = j.base
	for _, elem := range []string{"", filepath.Base(program), jailID, "root"} {
		j.path = filepath.Join(j.path, elem)
		if err := os.Mkdir(j.path, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make jail: %w", err)
		}
	}
	if j.root, err = os.Open(j.path); err != nil {
		return nil, fmt.Errorf("cannot make jail: %w", err)
	}
	return j, nil
}

// place makes an empty file of that name, over which a file of the host is mounted.
func (j *jail) place(name string) error {
	f, err := os.OpenFile(filepath.Join(j.path, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o400)
	if err != nil {
		return fmt.Errorf("cannot prepare jail: %w", err)
	}
	return f.Close()
}

// fifo makes a pipe for Firecracker to write to, and opens both of its ends: there is
// no end of it while we hold the second.
func (j *jail) fifo(name string) (r, w *os.File, err error) {
	path := filepath.Join(j.path, name)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, nil, fmt.Errorf("cannot prepare jail: %w", err)
	}
	if r, err = os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		return nil, nil, fmt.Errorf("cannot prepare jail: %w", err)
	}
	if err = r.Chown(int(j.user), int(j.user)); err == nil {
		w, err = os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("cannot prepare jail: %w", err), r.Close())
	}
	return r, w, nil
}

// remove removes a file of that name.
func (j *jail) remove(name string) error {
	err := j.at(func(root int) error { return unix.Unlinkat(root, name, 0) })
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove %s in the jail: %w", name, err)
	}
	return nil
}

// at does f with the root directory's descriptor. Dials that nobody waits for any more
// may come when it is closed.
func (j *jail) at(f func(root int) error) error {
	conn, err := j.root.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := conn.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// open opens what is in the jail under that name, itself and not what a link leads
// to, if it is of that type and belongs to the jail's user.
func (j *jail) open(name string, flags int, kind uint32) (*os.File, error) {
	var fd int
	err := j.at(func(root int) (err error) {
		fd, err = unix.Openat2(root, name, &unix.OpenHow{
			Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_CLOEXEC), //nolint:gosec // flags are positive.
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
		})
		return err
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: "jail:/" + name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if st.Mode&unix.S_IFMT != kind || st.Uid != j.user || (kind == unix.S_IFREG && st.Nlink != 1) {
		return nil, errors.Join(fmt.Errorf("%s in the jail is not what Firecracker makes", name), f.Close())
	}
	return f, nil
}

// dial connects to a socket in the jail. Its path may be too long for an address.
func (j *jail) dial(ctx context.Context, name string) (net.Conn, error) {
	socket, err := j.open(name, unix.O_PATH, unix.S_IFSOCK)
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.Close() }()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", socket.Fd()))
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			op.Addr = &net.UnixAddr{Net: "unix", Name: "jail:/" + name}
		}
		return nil, err
	}
	return conn, nil
}

// dialAPI connects to the API's socket, as soon as it is there.
func (j *jail) dialAPI(ctx context.Context) (conn net.Conn, err error) {
	err = wait.Until(ctx, func() (bool, error) {
		conn, err = j.dial(ctx, j.api)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
			return false, nil
		}
		return true, err
	})
	return conn, err
}

func (j *jail) close() { _ = j.root.Close() }

// A bind is a file of the host that is mounted in a jail.
type bind struct {
	From string `json:"from"`
	To   string `json:"to"`
	// Writable says that the machine's user may write to it.
	Writable bool `json:"writable,omitempty"`
	// Dev and Inode are those of the file that was checked.
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
}

// binds prepares the mounts of what p names, and of its disk, which it makes at path.
func (j *jail) binds(ctx context.Context, p *plan, path string) ([]bind, error) {
	var all []bind
	for _, f := range p.files {
		b, err := j.bind(f.path, f.name)
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	if p.disk == nil {
		return all, nil
	}
	b, err := j.bindDisk(ctx, p, path)
	return append(all, b), err
}

// bindDisk makes the disk of p at path, for the jail's user to write to. It lies
// outside the jail: there, he could put another in its place.
func (j *jail) bindDisk(ctx context.Context, p *plan, path string) (bind, error) {
	f, err := p.disk(ctx, path)
	if err != nil {
		return bind{}, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := errors.Join(f.Chown(int(j.user), int(j.user)), unix.Fstat(int(f.Fd()), &st)); err != nil {
		return bind{}, fmt.Errorf("cannot prepare disk: %w", err)
	}
	return bind{From: path, To: filepath.Join(j.path, jailDisk), Writable: true, Dev: st.Dev, Inode: st.Ino}, j.place(jailDisk)
}

// bind prepares the mount of the file at path under that name.
func (j *jail) bind(path, name string) (bind, error) {
	st, err := inspect(path)
	if err != nil {
		return bind{}, fmt.Errorf("%w: %w", vm.ErrInvalidConfig, err)
	}
	if err := j.place(name); err != nil {
		return bind{}, err
	}
	return bind{From: path, To: filepath.Join(j.path, name), Dev: st.Dev, Inode: st.Ino}, nil
}

// inspect makes sure that path is that of a file, and no device, which another user
// than its owner can read (threat T31).
func inspect(path string) (*unix.Stat_t, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%s is not a regular file", path)
	case st.Mode&0o004 == 0:
		return nil, fmt.Errorf("%s cannot be read by the machine's user; allow it with chmod a+r", path)
	}
	return &st, nil
}
