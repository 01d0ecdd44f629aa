package bootfiles

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/internal/initramfs"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

// AgentPath is the agent's place in the guest; see agent/microvm_linux.go.
const AgentPath = "/" + agentDir + "/agent"

const (
	agentDir   = ".bouvet"
	modulesDir = ".modules"
)

const (
	// keepFor is how long an initramfs of another agent or kernel is kept unused.
	keepFor = 30 * 24 * time.Hour
	// tempPrefix marks a file in the making; one that is older than tempLifetime is
	// abandoned.
	tempPrefix   = ".new-"
	tempLifetime = time.Hour
)

// Initramfs writes the first file system of guests of kernel k into dir, if it is not
// there, and returns its path. Its name is its content's digest. The modules named in
// without, as the kernel knows them, are left out: they are for other machines. What
// nobody has used in a month goes.
func Initramfs(dir string, agent []byte, k *kernel.Kernel, without ...string) (string, error) {
	if len(agent) == 0 {
		return "", errors.New("there is no agent")
	}
	entries := []initramfs.Entry{
		{Name: "dev", Mode: initramfs.ModeDir},
		{Name: "dev/console", Mode: initramfs.ModeChar, Major: 5, Minor: 1},
		{Name: agentDir, Mode: initramfs.ModeDir},
		{Name: AgentPath[1:], Mode: initramfs.ModeProg, Data: agent},
		{Name: modulesDir, Mode: initramfs.ModeDir},
	}
	for i, part := range k.Manifest.Modules {
		if slices.Contains(without, moduleName(part.Name)) {
			continue
		}
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
		now := time.Now()
		return path, os.Chtimes(path, now, now) // says that it is in use; see prune
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	prune(dir)
	return path, replace(path, archive.Bytes())
}

// HasModule reports whether k brings a module.
func HasModule(k *kernel.Kernel, name string) bool {
	return slices.ContainsFunc(k.Manifest.Modules, func(p kernel.Part) bool { return moduleName(p.Name) == name })
}

// moduleName is the name by which the kernel knows the module in file.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// prune removes what nobody has used in a long time, and files of writers that were
// killed.
func prune(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		age := time.Since(info.ModTime())
		if age > keepFor || (strings.HasPrefix(e.Name(), tempPrefix) && age > tempLifetime) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// replace writes the file at path as a whole. The user of a virtual machine monitor
// may read it, if it is handed to him.
func replace(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), tempPrefix)
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
