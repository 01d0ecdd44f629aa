package qemu

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bouvet-run/bouvet/internal/initramfs"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

// The agent's place in the guest; see agent/microvm_linux.go.
const (
	agentDir   = ".bouvet"
	agentPath  = "/" + agentDir + "/agent"
	modulesDir = ".modules"
)

// makeInitramfs writes the first file system of guests, if it is not there, and
// returns its path. Its name is its content's digest.
func makeInitramfs(dir string, agent []byte, k *kernel.Kernel) (string, error) {
	if len(agent) == 0 {
		return "", errors.New("there is no agent")
	}
	entries := []initramfs.Entry{
		{Name: "dev", Mode: initramfs.ModeDir},
		{Name: "dev/console", Mode: initramfs.ModeChar, Major: 5, Minor: 1},
		{Name: agentDir, Mode: initramfs.ModeDir},
		{Name: agentPath[1:], Mode: initramfs.ModeProg, Data: agent},
		{Name: modulesDir, Mode: initramfs.ModeDir},
	}
	for i, part := range k.Manifest.Modules {
		data, err := k.Read(part)
		if err != nil {
			return "", err
		}
		name := fmt.Sprintf("%s/%03d-%s", modulesDir, i, filepath.Base(part.Name))
		entries = append(entries, initramfs.Entry{Name: name, Mode: initramfs.ModeFile, Data: data})
	}
	var archive bytes.Buffer
	if err := initramfs.Write(&archive, entries); err != nil {
		return "", err
	}
	sum := sha256.Sum256(archive.Bytes())
	path := filepath.Join(dir, hex.EncodeToString(sum[:])+".cpio")
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, archive.Bytes()) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return path, replace(path, archive.Bytes())
}

// replace writes the file at path as a whole. QEMU's user may read it by a
// descriptor.
func replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o444), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
