package gvisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/mountinfo"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

// dismantle removes everything that belongs to the machine in dir, whatever state
// it is in, the directory last. It goes on after an error and returns all that it
// found, and all the errors; when it fails, the directory stays for the next attempt.
func (d *Driver) dismantle(ctx context.Context, dir *rundir.Dir) ([]vm.Leftover, error) {
	rec := dir.Record()
	var found []vm.Leftover
	var errs []error
	note := func(kind, what string, err error) {
		l := vm.Leftover{Kind: kind, Machine: rec.ID, What: what, Removed: err == nil}
		if err != nil {
			l.Error = err.Error()
			errs = append(errs, err)
		}
		found = append(found, l)
	}
	// A full disk must not keep what is there to be removed: the record says then
	// what it said before, and the next attempt finds all of it again.
	unrecorded := dir.Update(func(r *rundir.Record) { r.State = rundir.StateDestroying })

	pids, err := d.killAll(ctx, dir.Path(), &rec)
	for _, pid := range pids {
		note("process", strconv.Itoa(pid), nil)
	}
	if err != nil {
		errs = append(errs, err)
	}
	for _, r := range rec.Resources {
		if _, err := os.Lstat(r.Path); r.Kind == rundir.KindCgroup && !errors.Is(err, fs.ErrNotExist) {
			note("cgroup", r.Path, d.cgroups.Remove(ctx, r.Path))
		}
	}
	mounts, err := mountsUnder(dir.Path())
	if err != nil {
		errs = append(errs, err)
	}
	for _, m := range mounts {
		note("mount", m, unmount(m))
	}
	path := dir.Path()
	if len(errs) == 0 {
		note("directory", path, dir.Remove())
	} else {
		if unrecorded != nil {
			errs = append(errs, unrecorded)
		}
		note("directory", path, errors.New("kept because something of the machine is left"))
	}
	return found, errors.Join(errs...)
}

// killAll ends all processes of a machine and returns those that it found.
func (d *Driver) killAll(ctx context.Context, dir string, rec *rundir.Record) ([]int, error) {
	var killed []int
	var errs []error
	for _, r := range rec.Resources {
		if r.Kind != rundir.KindCgroup {
			continue
		}
		pids, err := cgroup.Kill(ctx, r.Path)
		killed = append(killed, pids...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	// A sentry that is known and gone has taken everything with it. Otherwise one
	// may run that no cgroup holds.
	if rec.Main.PID == 0 || rec.Main.Alive() || rec.State != rundir.StateRunning {
		pids, err := rundir.KillCarriers(ctx, rootFlag(dir))
		killed = append(killed, pids...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	slices.Sort(killed)
	return slices.Compact(killed), errors.Join(errs...)
}

// mountsUnder are the mount points below dir, the innermost first.
func mountsUnder(dir string) ([]string, error) {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	var points []string
	for line := range bytes.Lines(data) {
		if point, _, _, ok := mountinfo.Parse(string(line)); ok && strings.HasPrefix(point, dir+string(filepath.Separator)) {
			points = append(points, point)
		}
	}
	slices.Reverse(points)
	return points, nil
}

func unmount(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", path, err)
	}
	return nil
}
