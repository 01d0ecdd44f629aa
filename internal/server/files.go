package server

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// makeDir makes a directory of ours alone within another.
func makeDir(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return path, nil
}
