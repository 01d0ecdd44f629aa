// Package statedir says where Bouvet keeps what outlives a process: images,
// machines and the agent's own image.
package statedir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// EnvVar names the environment variable that overrides the state directory.
const EnvVar = "BOUVET_STATE_DIR"

// Default returns the absolute path of the state directory, which need not
// exist: $BOUVET_STATE_DIR; else /var/lib/bouvet for root; else
// $XDG_STATE_HOME/bouvet, or ~/.local/state/bouvet. A relative path in one of
// the variables is an error: a daemon and a command line started in different
// directories would otherwise disagree about what exists.
func Default() (string, error) {
	return locate(os.Geteuid(), os.Getenv, os.UserHomeDir)
}

func locate(euid int, getenv func(string) string, home func() (string, error)) (string, error) {
	if dir := getenv(EnvVar); dir != "" {
		return absolute(EnvVar, dir)
	}
	if euid == 0 {
		return "/var/lib/bouvet", nil
	}
	if dir := getenv("XDG_STATE_HOME"); dir != "" {
		base, err := absolute("XDG_STATE_HOME", dir)
		if err != nil {
			return "", err
		}
		return filepath.Join(base, "bouvet"), nil
	}
	dir, err := home()
	if err != nil {
		return "", fmt.Errorf("cannot find the state directory: %w; set %s", err, EnvVar)
	}
	base, err := absolute("HOME", dir)
	if err != nil {
		return "", err
	}
	return filepath.Join(base, ".local", "state", "bouvet"), nil
}

func absolute(variable, dir string) (string, error) {
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("cannot use %s=%q as a directory for state: it must be an absolute path", variable, dir)
	}
	return filepath.Clean(dir), nil
}

// Images returns the directory of the image store below base, and makes it if
// need be. An empty base means Default.
func Images(base string) (string, error) { return sub(base, "images") }

// Machines returns the directory that holds one directory per machine below
// base, and makes it if need be. An empty base means Default.
func Machines(base string) (string, error) { return sub(base, "machines") }

// Agent returns the directory that holds the images of the guest agent below
// base, and makes it if need be. An empty base means Default.
func Agent(base string) (string, error) { return sub(base, "agent") }

// Kernels returns the directory of the store of guest kernels below base, and makes
// it if need be. An empty base means Default.
func Kernels(base string) (string, error) { return sub(base, "kernels") }

// Snapshots returns the directory of the store of snapshots below base, and makes it if
// need be. An empty base means Default.
func Snapshots(base string) (string, error) { return sub(base, "snapshots") }

// Bases returns the directory of the machines that have just started, of which others
// are made, below base, and makes it if need be. An empty base means Default.
func Bases(base string) (string, error) { return sub(base, "bases") }

// Logs returns the directory of the consoles of past sandboxes below base, and makes
// it if need be. An empty base means Default.
func Logs(base string) (string, error) { return sub(base, "logs") }

// Daemon returns the directory of what is the daemon's alone below base, and makes it if
// need be. An empty base means Default.
func Daemon(base string) (string, error) {
	dir, err := sub(base, "daemon")
	if err != nil {
		return "", err
	}
	info, err := os.Lstat(dir)
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		err = fmt.Errorf("cannot use %s for the daemon: others may enter it; run chmod go= %s", dir, dir)
	}
	return dir, err
}

func sub(base, name string) (string, error) {
	if base == "" {
		var err error
		if base, err = Default(); err != nil {
			return "", err
		}
	}
	if !filepath.IsAbs(base) {
		return "", fmt.Errorf("cannot use %q as the state directory: it must be an absolute path", base)
	}
	dir := filepath.Join(base, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make the state directory: %w; set %s to one that is writable", err, EnvVar)
	}
	for _, d := range []string{base, dir} {
		if err := private(d); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// private refuses a directory that somebody else prepared: whoever can write to
// it could swap the images and agents that we trust (T44).
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("cannot use the state directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("cannot read the owner of the state directory")
	}
	switch {
	case !info.IsDir():
		return fmt.Errorf("cannot use %s for state: it is not a directory; remove it or set %s", dir, EnvVar)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("cannot use %s for state: it belongs to uid %d, not to uid %d; set %s to a directory of your own", dir, st.Uid, os.Geteuid(), EnvVar)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("cannot use %s for state: others may write to it; run chmod go-w %s", dir, dir)
	}
	return nil
}
