package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSocketPath is what sockaddr_un holds, without the NUL.
const maxSocketPath = 107

// listenUnix listens on a socket that only this user can connect to. It is made in
// private, a directory of ours alone, and has its mode before it has its name (T46).
func listenUnix(ctx context.Context, private, path string, log *slog.Logger) (net.Listener, error) {
	temp := filepath.Join(private, ".s-"+strings.ToLower(rand.Text()[:8]))
	if n := max(len(temp), len(path)); n > maxSocketPath {
		return nil, fmt.Errorf("cannot listen on %s: its path has %d bytes of at most %d; use a shorter --state-dir", path, n, maxSocketPath)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", temp)
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(errors.New("cannot listen: not a unix socket"), l.Close())
	}
	u.SetUnlinkOnClose(false)
	if err := claim(private, temp, path); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot listen on %s: %w", path, err), u.Close(), remove(temp))
	}
	return &peerListener{UnixListener: u, path: path, uid: os.Geteuid(), log: log}, nil
}

// claim gives the socket its mode and its name, in place of what a killed daemon left.
func claim(private, temp, path string) error {
	root, err := os.OpenRoot(private)
	if err != nil {
		return err
	}
	err = root.Chmod(filepath.Base(temp), 0o600)
	if err = errors.Join(err, root.Close()); err != nil {
		return err
	}
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("something that is no socket is there; move it away")
	}
	return os.Rename(temp, path)
}

func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// A peerListener accepts connections of one user, and of root.
type peerListener struct {
	*net.UnixListener
	path string
	uid  int
	log  *slog.Logger
}

// Accept implements net.Listener.
func (l *peerListener) Accept() (net.Conn, error) {
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			return nil, err
		}
		uid, err := peerUID(c)
		if err == nil && (uid == l.uid || uid == 0) {
			return c, nil
		}
		l.log.LogAttrs(context.Background(), slog.LevelWarn, "connection of another user was refused", slog.Int("uid", uid), slog.Any("error", err))
		_ = c.Close()
	}
}

// Close implements net.Listener.
func (l *peerListener) Close() error { return errors.Join(l.UnixListener.Close(), remove(l.path)) }

// peerUID tells whose process is at the other end; -1 if that cannot be known.
func peerUID(c *net.UnixConn) (int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	var cred *unix.Ucred
	var serr error
	if err := raw.Control(func(fd uintptr) { cred, serr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil || serr != nil {
		return -1, errors.Join(err, serr)
	}
	return int(cred.Uid), nil
}
