package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
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
		return d.inventory(a.Dir.Path(), &rec)
	}
	found, _ := d.dismantle(ctx, a.Dir)
	return found
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
