package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/bouvet-run/bouvet/internal/rundir"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/vm"
)

// Sweep finds what programs that were killed have left of the machines of any driver
// and, if remove is set, removes it. It makes no driver whose machines left nothing;
// what belongs to one that cannot be made here is told, with the reason, and stays.
func Sweep(ctx context.Context, opts Options, remove bool) ([]vm.Leftover, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	base, err := statedir.Machines(state)
	if err != nil {
		return nil, err
	}
	return sweep(ctx, base, remove, func(name string) (vm.Driver, error) {
		if name == "" || name == Auto { // which no machine's driver is
			return nil, errors.New("there is no such driver")
		}
		opts.Driver = name
		return Driver(ctx, opts)
	})
}

// sweep has the drivers sweep that have left something in base.
func sweep(ctx context.Context, base string, remove bool, driver func(name string) (vm.Driver, error)) ([]vm.Leftover, error) {
	// What is abandoned, by the name of its driver, and what nobody's is.
	owned, found, err := abandoned(ctx, base, remove)
	if err != nil {
		return found, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(owned)) {
		d, err := driver(name)
		if err != nil {
			for _, l := range owned[name] {
				l.Error = fmt.Sprintf("cannot remove what driver %.40q has left: %v", name, err)
				found = append(found, l)
			}
			continue
		}
		left, err := d.Sweep(ctx, remove)
		if err != nil {
			errs = append(errs, err)
		}
		for _, l := range left {
			if !slices.Contains(found, l) { // every driver tells what nobody's is
				found = append(found, l)
			}
		}
	}
	return found, errors.Join(append(errs, ctx.Err())...)
}

// abandoned lists the directories in base whose owners are dead, by the name of the
// driver, and those that cannot be read, which are nobody's. Unfinished directories
// are removed if remove is set.
func abandoned(ctx context.Context, base string, remove bool) (owned map[string][]vm.Leftover, nobodys []vm.Leftover, err error) {
	dirs, err := rundir.Sweep(ctx, base, remove)
	owned = map[string][]vm.Leftover{}
	for _, a := range dirs {
		l := vm.Leftover{Kind: "directory", What: a.Path}
		if a.Err != nil {
			l.Error = a.Err.Error()
			nobodys = append(nobodys, l)
		} else if r := a.Dir.Record(); !r.Detached || r.State != rundir.StateRunning || !r.Main.Alive() {
			l.Machine = r.ID
			owned[r.Driver] = append(owned[r.Driver], l)
		}
		if a.Dir != nil {
			_ = a.Dir.Close()
		}
	}
	return owned, nobodys, err
}

func logSweep(ctx context.Context, log *slog.Logger, left []vm.Leftover, err error) {
	if err != nil {
		log.LogAttrs(ctx, slog.LevelWarn, "cannot clear up after others", slog.Any("error", err))
	}
	for _, l := range left {
		if !l.Removed {
			log.LogAttrs(ctx, slog.LevelWarn, "something is left of a machine whose owner is dead",
				slog.String("kind", l.Kind), slog.String("what", l.What), slog.String("error", l.Error))
		}
	}
}
