package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

// Bounds of a directory listing: entries, and bytes of names, which in their
// worst escaping must still fit a line.
const (
	maxEntries   = 100_000
	maxNameBytes = 6 << 20
)

var (
	errNotRegular  = errors.New("not a regular file")
	errIsDirectory = errors.New("is a directory")
)

func callListDir(ctx context.Context, _ *Server, params json.RawMessage) (any, error) {
	path, err := decodePath(params)
	if err != nil {
		return nil, err
	}
	entries, err := listDir(ctx, path)
	if err != nil {
		return nil, failed("read directory", path, err)
	}
	return wire.ListDirResult{Entries: entries}, nil
}

var errTooManyEntries = errors.New("it has more entries than one answer may hold; list it with a command")

func listDir(ctx context.Context, path string) ([]wire.FileEntry, error) {
	// O_DIRECTORY: opening a fifo would wait for its writer.
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	entries := []wire.FileEntry{}
	nameBytes := 0
	for {
		batch, err := dir.ReadDir(1024)
		for _, d := range batch {
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // removed since
			}
			if err != nil {
				return nil, err
			}
			e := wire.FileEntry{Name: d.Name(), IsDir: info.IsDir()}
			if info.Mode().IsRegular() { // checklist D12
				e.Size = uint64(info.Size()) //nolint:gosec // sizes are not negative.
			}
			entries = append(entries, e)
			nameBytes += len(e.Name)
		}
		switch {
		case len(entries) > maxEntries || nameBytes > maxNameBytes:
			return nil, errTooManyEntries
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil || len(batch) == 0: // io.EOF
			slices.SortFunc(entries, func(a, b wire.FileEntry) int { return strings.Compare(a.Name, b.Name) })
			return entries, nil
		}
	}
}

func callStat(_ context.Context, _ *Server, params json.RawMessage) (any, error) {
	path, err := decodePath(params)
	if err != nil {
		return nil, err
	}
	info, err := stat(path)
	if err != nil {
		return nil, failed("stat", path, err)
	}
	return info, nil
}

func stat(path string) (wire.FileInfo, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return wire.FileInfo{}, err
	}
	info, err := os.Lstat(abs)
	if err != nil {
		return wire.FileInfo{}, err
	}
	result := wire.FileInfo{Name: info.Name(), Path: abs, Type: wire.TypeOther, ModTimeNS: info.ModTime().UnixNano()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		result.Mode = st.Mode & 0o7777
		result.UID, result.GID = st.Uid, st.Gid
		result.User, result.Group = userName(st.Uid), groupName(st.Gid)
	}
	switch {
	case info.Mode().IsRegular():
		result.Type = wire.TypeFile
		result.Size = uint64(info.Size()) //nolint:gosec // sizes are not negative.
	case info.IsDir():
		result.Type = wire.TypeDir
	case info.Mode()&fs.ModeSymlink != 0:
		result.Type = wire.TypeSymlink
		if result.Target, err = os.Readlink(abs); err != nil {
			return wire.FileInfo{}, err
		}
	}
	return result, nil
}

func callMakeDir(_ context.Context, _ *Server, params json.RawMessage) (any, error) {
	var p wire.MakeDirParams
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	o, err := target(p.Path, p.Mode, p.User)
	if err != nil {
		return nil, err
	}
	created, err := makeDirs(p.Path, o)
	if err == nil && created && p.Mode != nil {
		err = atDir(p.Path, func(fd int) error { return unix.Fchmod(fd, *p.Mode) })
	}
	if err != nil {
		return nil, failed("create directory", p.Path, err)
	}
	return wire.MakeDirResult{Created: created}, nil
}

// makeDirs makes path and its missing parents, all of them owned by o, and
// reports whether path itself was missing.
func makeDirs(path string, o *owner) (created bool, err error) {
	path = filepath.Clean(path)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return false, nil
	case err == nil:
		return false, unix.ENOTDIR
	case !errors.Is(err, fs.ErrNotExist):
		return false, err
	}
	if parent := filepath.Dir(path); parent != path {
		if _, err := makeDirs(parent, o); err != nil {
			return false, err
		}
	}
	if err := os.Mkdir(path, 0o777); err != nil { //nolint:gosec // less the umask, as everywhere.
		if errors.Is(err, fs.ErrExist) {
			// Made by somebody else since; a dangling link is not a directory.
			info, statErr := os.Stat(path)
			if statErr == nil && info.IsDir() {
				return false, nil
			}
		}
		return false, err
	}
	if o == nil {
		return true, nil
	}
	return true, atDir(path, func(fd int) error { return unix.Fchown(fd, o.uid, o.gid) })
}

// atDir calls do with a descriptor of the directory, which no link can stand for.
func atDir(path string, do func(fd int) error) error {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	return do(int(dir.Fd()))
}

func callRemove(_ context.Context, _ *Server, params json.RawMessage) (any, error) {
	path, err := decodePath(params)
	if err != nil {
		return nil, err
	}
	if err := remove(path); err != nil {
		return nil, failed("remove", path, err)
	}
	return wire.Empty{}, nil
}

var errRoot = errors.New("it is the root directory")

// remove removes path and all below it, but never through a symbolic link: that
// is removed itself.
func remove(path string) error {
	abs, err := removable(path)
	if err != nil {
		return err
	}
	return os.RemoveAll(abs)
}

// removable returns the absolute path of what may be removed, which is anything
// there is but the root.
func removable(path string) (string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(abs)
	if err != nil {
		return "", err
	}
	root, err := os.Stat("/")
	if err != nil {
		return "", err
	}
	if os.SameFile(info, root) {
		return "", errRoot
	}
	return abs, nil
}
