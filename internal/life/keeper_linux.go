package life

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
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/mountinfo"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

// cleanupTimeout bounds the removal of a machine, which does not end with the
// caller's context.
const cleanupTimeout = 30 * time.Second

// A Keeper makes, removes and finds the machines of one driver. Its methods are safe
// for concurrent use.
type Keeper struct {
	// Driver is the driver's name, which the records carry.
	Driver string
	// Base is the directory of the machines' directories. Drivers may share one.
	Base string
	// Cgroups limits the machines.
	Cgroups *cgroup.Tree
	// Mark returns the argument that every process of the machine in dir carries on
	// its command line, and no other process.
	Mark func(dir string) string
}

// Make records that machine c is about to be made, with its cgroups and the other
// resources, calls build, and removes all that was made if that fails. The error
// wraps vm.ErrExists if there is a machine of this ID. c is valid.
func (k *Keeper) Make(ctx context.Context, c *vm.Config, build func(dir *rundir.Dir) (vm.Machine, error)) (vm.Machine, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	record := rundir.Record{Driver: k.Driver, State: rundir.StateCreating, Detached: c.Detached}
	for _, path := range k.Cgroups.Dirs(c.ID) {
		record.Add(rundir.Resource{Kind: rundir.KindCgroup, Path: path})
	}
	dir, err := rundir.Create(k.Base, c.ID, record)
	if errors.Is(err, rundir.ErrExists) {
		return nil, fmt.Errorf("cannot create machine %s: %w", c.ID, vm.ErrExists)
	}
	if err != nil {
		return nil, err
	}
	m, err := build(dir)
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_, cleanErr := k.dismantle(clean, dir)
		return nil, errors.Join(fmt.Errorf("cannot create machine %s: %w", c.ID, err), cleanErr)
	}
	return m, nil
}

// Sweep is vm.Driver's. Detached machines that run are no leftovers, nor is what
// another driver's record names.
func (k *Keeper) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	abandoned, err := rundir.Sweep(ctx, k.Base, remove)
	var found []vm.Leftover
	for _, a := range abandoned {
		found = append(found, k.sweep(ctx, a, remove)...)
	}
	return found, errors.Join(err, ctx.Err())
}

func (k *Keeper) sweep(ctx context.Context, a rundir.Abandoned, remove bool) []vm.Leftover {
	if a.Dir != nil {
		defer func() { _ = a.Dir.Close() }()
	}
	if a.Err != nil {
		return []vm.Leftover{{Kind: "directory", What: a.Path, Error: a.Err.Error()}}
	}
	rec := a.Dir.Record()
	if rec.Driver != k.Driver || (rec.Detached && rec.State == rundir.StateRunning && rec.Main.Alive()) {
		return nil
	}
	for _, r := range rec.Resources {
		if r.Kind == rundir.KindCgroup && !cgroup.Owned(r.Path, rec.ID) {
			err := fmt.Errorf("its record names %.200q, which is no cgroup of this machine", r.Path)
			return []vm.Leftover{{Kind: "directory", Machine: rec.ID, What: a.Path, Error: err.Error()}}
		}
	}
	if !remove || ctx.Err() != nil {
		return k.inventory(a.Dir.Path(), &rec)
	}
	found, _ := k.dismantle(ctx, a.Dir)
	return found
}

// inventory is what dismantle would find.
func (k *Keeper) inventory(dir string, rec *rundir.Record) []vm.Leftover {
	var found []vm.Leftover
	note := func(kind, what string) {
		found = append(found, vm.Leftover{Kind: kind, Machine: rec.ID, What: what})
	}
	pids, _ := rundir.Carriers(k.Mark(dir))
	for _, pid := range pids {
		note("process", strconv.Itoa(pid))
	}
	for _, r := range rec.Resources {
		if _, err := os.Lstat(r.Path); err == nil {
			note(r.Kind, r.Path)
		}
	}
	mounts, _ := mountsUnder(dir)
	for _, m := range mounts {
		note("mount", m)
	}
	note("directory", dir)
	return found
}

// dismantle removes everything that belongs to the machine in dir, whatever state
// it is in, the directory last. It goes on after an error and returns all that it
// found, and all the errors; when it fails, the directory stays for the next attempt.
func (k *Keeper) dismantle(ctx context.Context, dir *rundir.Dir) (found []vm.Leftover, err error) {
	err = rundir.WithReserve(func() error {
		var again []vm.Leftover
		again, err := k.dismantleOnce(ctx, dir)
		found = append(found, again...)
		return err
	})
	return found, err
}

func (k *Keeper) dismantleOnce(ctx context.Context, dir *rundir.Dir) ([]vm.Leftover, error) {
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
	pids, err := k.killAll(ctx, dir.Path(), &rec)
	for _, pid := range pids {
		note("process", strconv.Itoa(pid), nil)
	}
	if err != nil {
		errs = append(errs, err)
	}
	for _, r := range rec.Resources {
		if _, err := os.Lstat(r.Path); r.Kind == rundir.KindCgroup && !errors.Is(err, fs.ErrNotExist) {
			note("cgroup", r.Path, k.Cgroups.Remove(ctx, r.Path))
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
func (k *Keeper) killAll(ctx context.Context, dir string, rec *rundir.Record) ([]int, error) {
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
	// A main process that is known and gone has taken everything with it. Otherwise
	// one may run that no cgroup holds.
	if rec.Main.PID == 0 || rec.Main.Alive() || rec.State != rundir.StateRunning {
		pids, err := rundir.KillCarriers(ctx, k.Mark(dir))
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
