package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/bouvet-run/bouvet/internal/cgroup"
	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/vm"
)

// Sweep implements vm.Driver. Detached machines that run are no leftovers.
func (d *Driver) Sweep(ctx context.Context, remove bool) ([]vm.Leftover, error) {
	abandoned, err := rundir.Sweep(ctx, d.base, remove)
	var found []vm.Leftover
	for _, a := range abandoned {
		found = append(found, d.sweep(ctx, a, remove)...)
	}
	return found, errors.Join(err, ctx.Err())
}

func (d *Driver) sweep(ctx context.Context, a rundir.Abandoned, remove bool) []vm.Leftover {
	if a.Dir != nil {
		defer func() { _ = a.Dir.Close() }()
	}
	if a.Err != nil {
		return []vm.Leftover{{Kind: "directory", What: a.Path, Error: a.Err.Error()}}
	}
	rec := a.Dir.Record()
	if rec.Driver != Name || (rec.Detached && rec.State == rundir.StateRunning && rec.Main.Alive()) {
		return nil
	}
	for _, r := range rec.Resources {
		if r.Kind == rundir.KindCgroup && !cgroup.Owned(r.Path, rec.ID) {
			err := fmt.Errorf("its record names %.200q, which is no cgroup of this machine", r.Path)
			return []vm.Leftover{{Kind: "directory", Machine: rec.ID, What: a.Path, Error: err.Error()}}
		}
	}
	if !remove || ctx.Err() != nil {
		return inventory(a.Dir.Path(), &rec)
	}
	found, _ := d.dismantle(ctx, a.Dir)
	return found
}

// inventory is what dismantle would find.
func inventory(dir string, rec *rundir.Record) []vm.Leftover {
	var found []vm.Leftover
	note := func(kind, what string) {
		found = append(found, vm.Leftover{Kind: kind, Machine: rec.ID, What: what})
	}
	pids, _ := rundir.Carriers(nameArg(dir))
	for _, pid := range pids {
		note("process", strconv.Itoa(pid))
	}
	for _, r := range rec.Resources {
		if _, err := os.Lstat(r.Path); err == nil {
			note(r.Kind, r.Path)
		}
	}
	note("directory", dir)
	return found
}

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
	pids, err := killAll(ctx, dir.Path(), &rec)
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
func killAll(ctx context.Context, dir string, rec *rundir.Record) ([]int, error) {
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
	// A QEMU that is known and gone was all there was. Otherwise one may run that no
	// cgroup holds.
	if rec.Main.PID == 0 || rec.Main.Alive() || rec.State != rundir.StateRunning {
		pids, err := rundir.KillCarriers(ctx, nameArg(dir))
		killed = append(killed, pids...)
		if err != nil {
			errs = append(errs, err)
		}
	}
	slices.Sort(killed)
	return slices.Compact(killed), errors.Join(errs...)
}
