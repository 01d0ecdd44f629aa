package disk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// mkfsTimeout bounds the making of a file system.
	mkfsTimeout = time.Minute
	// mkfsOutput is how much of its messages an error tells, in bytes, and mkfsDelay how
	// long they may lag behind its end.
	mkfsOutput = 2 << 10
	mkfsDelay  = time.Second
	// tempPrefix marks a file in the making; one that is older than tempLifetime is
	// abandoned.
	tempPrefix   = ".new-"
	tempLifetime = time.Hour
)

// mkfsArgs make a file system that is thrown away with its machine, the same whatever
// the host's mke2fs.conf says: no journal, no checksums, nothing set aside, and nothing
// left for the guest to initialise, which would fill the holes of the file.
var mkfsArgs = []string{
	"-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "8192", "-m", "0",
	"-O", "none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,64bit,uninit_bg",
	// It knows that what it has discarded is zero.
	"-E", "lazy_itable_init=0,discard",
}

// mkfsPaths are where e2fsprogs has its programs, which is not in every $PATH.
var mkfsPaths = []string{"mkfs.ext4", "/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"}

// A Maker makes disks. Its methods are safe for concurrent use, also by several
// processes.
type Maker struct {
	// Dir keeps the empty file systems. It belongs to the user alone, and is made when
	// it is needed.
	Dir string
	// Programs are where mkfs.ext4 is looked for; nil means the usual places.
	Programs []string
}

// New makes an empty disk of mib MiB at path, where nothing is, and returns it open
// for reading and writing. The error wraps vm.ErrUnsupported where there is no
// mkfs.ext4. After an error there may be a part of it at path.
func (m *Maker) New(ctx context.Context, path string, mib int) (*os.File, error) {
	empty, err := m.open(ctx, mib)
	if err != nil {
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	defer func() { _ = empty.Close() }()
	return Copy(ctx, path, empty)
}

// Copy makes a disk at path that is a copy of from. It is like New else.
func Copy(ctx context.Context, path string, from *os.File) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	if err := snapshot.CopySparse(ctx, f, from); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	return f, nil
}

// open returns the empty file system of this size, which it makes if there is none.
func (m *Maker) open(ctx context.Context, mib int) (*os.File, error) {
	path := filepath.Join(m.Dir, strconv.Itoa(mib)+".ext4")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return nil, err
	}
	m.prune()
	if f, err = os.CreateTemp(m.Dir, tempPrefix); err != nil {
		return nil, err
	}
	err = f.Truncate(int64(mib) << 20)
	if err == nil {
		err = m.mkfs(ctx, f.Name())
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = f.Close()
		return nil, errors.Join(err, os.Remove(f.Name()))
	}
	return f, nil
}

// prune removes files of makers that were killed.
func (m *Maker) prune() {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasPrefix(e.Name(), tempPrefix) && time.Since(info.ModTime()) > tempLifetime {
			_ = os.Remove(filepath.Join(m.Dir, e.Name()))
		}
	}
}

func (m *Maker) mkfs(ctx context.Context, path string) error {
	paths, program := m.Programs, ""
	if paths == nil {
		paths = mkfsPaths
	}
	for _, p := range paths {
		if found, err := exec.LookPath(p); err == nil {
			program = found
			break
		}
	}
	if program == "" {
		return fmt.Errorf("%w: there is no mkfs.ext4: install it with apt-get install e2fsprogs, or leave out the disk size", vm.ErrUnsupported)
	}
	ctx, cancel := context.WithTimeout(ctx, mkfsTimeout)
	defer cancel()
	said := life.NewTail(mkfsOutput)
	cmd := exec.CommandContext(ctx, program, append(slices.Clip(mkfsArgs), path)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = mkfsDelay
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("mkfs.ext4 failed: %w: %s", err, life.OneLine(said.String()))
	}
	return nil
}
