package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

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
		if r.Kind == rundir.KindCgroup && !machineCgroup(r.Path, rec.ID) {
			err := fmt.Errorf("its record names %.200q, which is no cgroup of this machine", r.Path)
			return []vm.Leftover{{Kind: "directory", Machine: rec.ID, What: a.Path, Error: err.Error()}}
		}
	}
	if !remove || ctx.Err() != nil {
		return d.inventory(a.Dir.Path(), &rec)
	}
	found, _ := d.dismantle(ctx, a.Dir)
	return found
}

// machineCgroup reports whether path can be a cgroup of machine id: one of that name,
// with a parent that is not the root of its hierarchy, or none any more. A sweep kills
// all that is in it, so the record alone is not believed.
func machineCgroup(path, id string) bool {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || filepath.Base(path) != id {
		return false
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return true
	}
	for range 3 {
		var s unix.Statfs_t
		if unix.Statfs(path, &s) != nil || s.Type != unix.CGROUP_SUPER_MAGIC && s.Type != unix.CGROUP2_SUPER_MAGIC {
			return false
		}
		path = filepath.Dir(path)
	}
	return true
}

// inventory is what dismantle would find.
func (d *Driver) inventory(dir string, rec *rundir.Record) []vm.Leftover {
	var found []vm.Leftover
	note := func(kind, what string) {
		found = append(found, vm.Leftover{Kind: kind, Machine: rec.ID, What: what})
	}
	pids, _ := rundir.Carriers(rootFlag(dir))
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
