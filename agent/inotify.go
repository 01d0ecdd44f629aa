package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

// A watcher reports changes below a path through inotify(7).
type watcher struct {
	events    *os.File
	root      string
	recursive bool
	paths     map[int]string // of each watch, relative to root; "" is root itself
}

const watchMask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_DELETE_SELF |
	unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MOVE_SELF

func newWatcher(root string, recursive bool) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watcher{events: os.NewFile(uintptr(fd), "inotify"), root: root, recursive: recursive, paths: map[int]string{}}
	err = w.add("", 0)
	if err == nil && recursive {
		err = w.addBelow("", nil)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

// close ends the watch; run returns.
func (w *watcher) close() { _ = w.events.Close() }

// control calls do with the descriptor, which run may be reading from.
func (w *watcher) control(do func(fd int) error) error {
	rc, err := w.events.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	if err := rc.Control(func(fd uintptr) { doErr = do(int(fd)) }); err != nil {
		return err
	}
	return doErr
}

func (w *watcher) add(rel string, flags uint32) error {
	return w.control(func(fd int) error {
		wd, err := unix.InotifyAddWatch(fd, filepath.Join(w.root, rel), watchMask|flags)
		if err == nil {
			w.paths[wd] = rel
		}
		return err
	})
}

// addBelow watches the directories below the directory rel, and calls found with
// every name there: they were made before the watch was. Those that vanish
// meanwhile, or may not be read, are passed over.
func (w *watcher) addBelow(rel string, found func(rel string) error) error {
	top := filepath.Join(w.root, rel)
	return filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if path == top || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				return nil
			}
			return err
		}
		if path == top {
			return nil
		}
		below, err := filepath.Rel(w.root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			err := w.add(below, unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
			if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, fs.ErrPermission) {
				return err
			}
		}
		if found == nil {
			return nil
		}
		return found(below)
	})
}

// dropBelow forgets the watches of a directory that went away, and all below it:
// what is reported of them from now on would have the wrong name.
func (w *watcher) dropBelow(rel string) {
	for wd, path := range w.paths {
		if path != rel && !strings.HasPrefix(path, rel+"/") {
			continue
		}
		delete(w.paths, wd)
		_ = w.control(func(fd int) error {
			_, err := unix.InotifyRmWatch(fd, uint32(wd)) //nolint:gosec // the kernel's numbers are positive.
			return err
		})
	}
}

// An inotifyEvent is struct inotify_event of inotify(7).
type inotifyEvent struct {
	wd   int
	mask uint32
	name string
}

const eventHeaderLen = unix.SizeofInotifyEvent

// cutEvent takes the first event off b.
func cutEvent(b []byte) (e inotifyEvent, rest []byte, ok bool) {
	if len(b) < eventHeaderLen {
		return inotifyEvent{}, nil, false
	}
	n := uint64(binary.NativeEndian.Uint32(b[12:]))
	if n > uint64(len(b)-eventHeaderLen) { //nolint:gosec // checked.
		return inotifyEvent{}, nil, false
	}
	name, _, _ := bytes.Cut(b[eventHeaderLen:eventHeaderLen+n], []byte{0})
	return inotifyEvent{
		wd: int(int32(binary.NativeEndian.Uint32(b))), mask: binary.NativeEndian.Uint32(b[4:]), name: string(name), //nolint:gosec // a signed field.
	}, b[eventHeaderLen+n:], true
}

// run calls send with every event until that fails, the watch is closed, or the
// watched path is gone: then it returns nil.
func (w *watcher) run(send func(wire.WatchEvent) error) error {
	buf := make([]byte, 64<<10)
	for {
		n, err := w.events.Read(buf)
		switch {
		case errors.Is(err, os.ErrClosed), errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		for rest := buf[:n]; ; {
			var e inotifyEvent
			var ok bool
			if e, rest, ok = cutEvent(rest); !ok {
				break
			}
			gone, err := w.report(e, send)
			if gone || err != nil {
				return err
			}
		}
	}
}

// report sends what one event means, and reports whether it was the watch's last.
func (w *watcher) report(e inotifyEvent, send func(wire.WatchEvent) error) (gone bool, err error) {
	if e.mask&unix.IN_Q_OVERFLOW != 0 {
		return false, send(wire.WatchEvent{Op: wire.WatchOverflow})
	}
	dir, known := w.paths[e.wd]
	if !known {
		return false, nil
	}
	if e.mask&unix.IN_IGNORED != 0 {
		delete(w.paths, e.wd)
		return dir == "", nil
	}
	if e.name == "" && dir != "" {
		return false, nil // told with its name by the directory above
	}
	rel := filepath.Join(dir, e.name)
	isDir := e.mask&unix.IN_ISDIR != 0
	if isDir && e.mask&unix.IN_MOVED_FROM != 0 {
		w.dropBelow(rel)
	}
	if op := opOf(e.mask); op != "" {
		if err := send(wire.WatchEvent{Op: op, Name: rel}); err != nil {
			return false, err
		}
	}
	if e.mask&unix.IN_MOVE_SELF != 0 {
		return true, nil // its old name, and so all names, mean something else now
	}
	if !isDir || !w.recursive || e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) == 0 {
		return false, nil
	}
	return false, w.follow(rel, send)
}

// follow begins to watch a directory that appeared. What was made in it before is
// reported now; it may be reported twice, but never not at all.
func (w *watcher) follow(rel string, send func(wire.WatchEvent) error) error {
	var sendErr error
	err := w.add(rel, unix.IN_ONLYDIR|unix.IN_DONT_FOLLOW)
	if err == nil {
		err = w.addBelow(rel, func(below string) error {
			sendErr = send(wire.WatchEvent{Op: wire.WatchCreate, Name: below})
			return sendErr
		})
	}
	switch {
	case sendErr != nil:
		return sendErr
	case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, fs.ErrPermission):
		return nil
	default:
		// Out of watches: changes in there will be missed.
		return send(wire.WatchEvent{Op: wire.WatchOverflow, Name: rel})
	}
}

func opOf(mask uint32) string {
	switch {
	case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		return wire.WatchCreate
	case mask&unix.IN_MODIFY != 0:
		return wire.WatchWrite
	case mask&(unix.IN_DELETE|unix.IN_DELETE_SELF) != 0:
		return wire.WatchRemove
	case mask&(unix.IN_MOVED_FROM|unix.IN_MOVE_SELF) != 0:
		return wire.WatchRename
	case mask&unix.IN_ATTRIB != 0:
		return wire.WatchChmod
	default:
		return ""
	}
}
