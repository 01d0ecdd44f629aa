package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/image/internal/erofs"
)

// maxDirDepth bounds how deep a directory that is imported may be: one
// descriptor is open for each level.
const maxDirDepth = 256

// WriteDir writes the directory dir of the host as an EROFS image to out, which
// must be empty. Symbolic links in it are copied and never followed; devices and
// sockets are refused. Files that change while they are read are reported, for
// the image would hold something that never existed.
func WriteDir(ctx context.Context, dir string, out Output, limits Limits, progress Progress) (Stats, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Stats{}, err
	}
	defer func() { _ = root.Close() }()
	info, err := root.Stat(".")
	if err != nil {
		return Stats{}, err
	}
	w := &dirWriter{
		flattener: newFlattener(out, FlattenOptions{Limits: limits, Progress: progress}),
		linked:    make(map[devInode]*erofs.Inode),
	}
	if err := describeInfo(w.tree.root, info); err != nil {
		return Stats{}, err
	}
	if err := w.directory(ctx, root, "", w.tree.root, 1); err != nil {
		return Stats{}, err
	}
	return w.finish(ctx)
}

type devInode struct{ dev, inode uint64 }

// A dirWriter copies a directory of the host.
type dirWriter struct {
	*flattener
	linked map[devInode]*erofs.Inode // files with several names
}

func (w *dirWriter) directory(ctx context.Context, root *os.Root, at string, into *erofs.Inode, depth int) error {
	if depth > maxDirDepth {
		return fmt.Errorf("%w: %.300q lies more than %d directories deep", ErrRefused, at, maxDirDepth)
	}
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		if err := w.add(ctx, root, path.Join(at, name), name, into, depth); err != nil {
			return err
		}
	}
	return nil
}

func (w *dirWriter) add(ctx context.Context, root *os.Root, at, name string, into *erofs.Inode, depth int) error {
	fail := func(err error) error { return fmt.Errorf("cannot add %.300q: %w", at, err) }
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := w.count(); err != nil {
		return fail(err)
	}
	info, err := root.Lstat(name)
	if err != nil {
		return fail(changed(err))
	}
	n := &erofs.Inode{}
	switch info.Mode().Type() {
	case 0:
		if n, err = w.file(ctx, root, name, info); err != nil {
			return fail(err)
		}
	case fs.ModeDir:
		return w.subdirectory(ctx, root, at, name, info, into, depth)
	case fs.ModeSymlink:
		n.Mode = erofs.TypeSymlink
		target, err := root.Readlink(name)
		if err != nil {
			return fail(changed(err))
		}
		if n.Target, err = linkTarget(target); err != nil {
			return fail(err)
		}
	case fs.ModeNamedPipe:
		n.Mode = erofs.TypeFIFO
	default:
		return fail(fmt.Errorf("%w: it is a device or a socket", ErrRefused))
	}
	if err := describeInfo(n, info); err != nil {
		return fail(err)
	}
	if err := w.tree.put(into, name, n); err != nil {
		return fail(err)
	}
	return nil
}

// subdirectory goes down into a directory, making sure that it is the one that
// was looked at and not a symbolic link that took its place.
func (w *dirWriter) subdirectory(ctx context.Context, root *os.Root, at, name string, info fs.FileInfo, into *erofs.Inode, depth int) error {
	fail := func(err error) error { return fmt.Errorf("cannot add %.300q: %w", at, err) }
	sub, err := root.OpenRoot(name)
	if err != nil {
		return fail(changed(err))
	}
	defer func() { _ = sub.Close() }()
	now, err := sub.Stat(".")
	if err != nil || !os.SameFile(info, now) {
		return fail(errors.Join(errChanged, err))
	}
	n := implicitDir()
	if err := describeInfo(n, info); err != nil {
		return fail(err)
	}
	if err := w.tree.put(into, name, n); err != nil {
		return fail(err)
	}
	return w.directory(ctx, sub, at, n, depth+1)
}

// file copies a regular file, once for all its names.
func (w *dirWriter) file(ctx context.Context, root *os.Root, name string, info fs.FileInfo) (*erofs.Inode, error) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, errors.New("cannot read the attributes of the file")
	}
	key := devInode{st.Dev, st.Ino}
	if n := w.linked[key]; n != nil {
		return n, nil
	}
	n := &erofs.Inode{Mode: erofs.TypeRegular}
	// Without O_NONBLOCK a FIFO that took the file's place would stop us.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, changed(err)
	}
	defer func() { _ = f.Close() }()
	if err := sameState(info, f); err != nil {
		return nil, err
	}
	if err := w.content(ctx, n, f, info.Size()); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errChanged
		}
		return nil, err
	}
	if err := sameState(info, f); err != nil {
		return nil, err
	}
	if st.Nlink > 1 {
		w.linked[key] = n
	}
	return n, nil
}

var errChanged = errors.New("it changed while it was being read; stop what writes to it and try again")

// changed explains an error that only a race can cause.
func changed(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return fmt.Errorf("%w: %w", errChanged, err)
	}
	return err
}

// sameState returns errChanged unless f is the file that info describes, unchanged.
func sameState(info fs.FileInfo, f *os.File) error {
	now, err := f.Stat()
	if err != nil {
		return err
	}
	if !os.SameFile(info, now) || now.Size() != info.Size() || !now.ModTime().Equal(info.ModTime()) {
		return errChanged
	}
	return nil
}

// describeInfo copies owner, permissions and time of a file of the host.
func describeInfo(n *erofs.Inode, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("cannot read the attributes of the file")
	}
	n.Mode = n.Type() | st.Mode&0o7777
	n.UID, n.GID = st.Uid, st.Gid
	n.MtimeSec, n.MtimeNsec = st.Mtim.Sec, uint32(st.Mtim.Nsec) //nolint:gosec // below 1e9
	return nil
}
