package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// diskName is the file in a machine's directory that holds its writable layer.
	diskName = "disk"
	// mkfsTimeout bounds the making of a file system.
	mkfsTimeout = time.Minute
	// mkfsOutput is how much of its messages an error tells, in bytes.
	mkfsOutput = 2 << 10
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

// templates are empty file systems, one of each size, that machines' disks are copied
// from.
type templates struct {
	dir string
	// programs are where mkfs.ext4 is looked for; nil means mkfsPaths.
	programs []string
}

// newDisk makes an empty disk of mib MiB for the machine in dir.
func (t *templates) newDisk(ctx context.Context, dir *rundir.Dir, mib int) (*os.File, error) {
	template, err := t.open(ctx, mib)
	if err != nil {
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	defer func() { _ = template.Close() }()
	return copyDisk(ctx, dir, template)
}

// copyDisk makes the disk of the machine in dir a copy of from.
func copyDisk(ctx context.Context, dir *rundir.Dir, from *os.File) (_ *os.File, err error) {
	f, err := os.OpenFile(dir.Join(diskName), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	err = snapshot.CopySparse(ctx, f, from)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot make disk: %w", err)
	}
	return f, nil
}

// open returns the template of this size, which it makes if there is none.
func (t *templates) open(ctx context.Context, mib int) (*os.File, error) {
	path := filepath.Join(t.dir, strconv.Itoa(mib)+".ext4")
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return nil, err
	}
	if f, err = os.CreateTemp(t.dir, ".new-"); err != nil {
		return nil, err
	}
	err = f.Truncate(int64(mib) << 20)
	if err == nil {
		err = t.mkfs(ctx, f.Name())
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

func (t *templates) mkfs(ctx context.Context, path string) error {
	paths, program := t.programs, ""
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
	cmd := exec.CommandContext(ctx, program, append(mkfsArgs, path)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "MKE2FS_CONFIG=/dev/null"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = outputDelay
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("mkfs.ext4 failed: %w: %s", err, life.OneLine(said.String()))
	}
	return nil
}
