package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/local"
)

// openSnapshots finds the snapshot to run on, and holds it until release is called,
// and makes sure that there is a name for the one to be made.
func (s *runSession) openSnapshots() (release func(), err error) {
	release = func() {}
	if s.from == "" && s.snapshot == "" {
		return release, nil
	}
	store, err := s.backend.Snapshots()
	if err != nil {
		return nil, err
	}
	if s.snapshot != "" {
		if err := store.Free(s.snapshot); err != nil {
			return nil, err
		}
	}
	if s.from == "" {
		return release, nil
	}
	_, release, err = store.Acquire(s.from)
	if err != nil {
		return nil, err
	}
	info, err := store.Inspect(s.from)
	if err == nil && info.Problem != "" {
		err = cannot(kindSnapshotRefused, "bouvet snapshot rm "+s.from, "use snapshot %s: %s", s.from, info.Problem)
	}
	if err == nil {
		err = s.takeDriver(info.Manifest.Driver)
	}
	if err != nil {
		release()
		return nil, err
	}
	s.saved = &info
	return release, nil
}

// takeDriver uses the driver of the snapshot, unless another was asked for.
func (s *runSession) takeDriver(name string) error {
	if s.driverFlag() == local.Auto {
		s.runCommand.driver = name
	}
	if s.driverFlag() != name {
		return usage("--driver "+name, "cannot run snapshot %s with driver %s: it was made with driver %s", s.from, s.driverFlag(), quoted(name))
	}
	return nil
}

func (s *runSession) driverFlag() string { return s.runCommand.driver }

// create makes the sandbox, of the snapshot if there is one.
func (s *runSession) create(ctx context.Context, manager *bouvet.Manager) (*bouvet.Sandbox, error) {
	if s.saved == nil {
		return manager.CreateSandbox(ctx, s.config())
	}
	return manager.Restore(ctx, s.saved.Path, s.config())
}

// save keeps the sandbox under its name, if its command has succeeded.
func (s *runSession) save(ctx context.Context, end *outcome) error {
	if end.ExitCode != 0 {
		if !s.quiet {
			s.say(fmt.Sprintf("the sandbox is not saved as %s: its command ended with %d", s.snapshot, end.ExitCode))
		}
		return nil
	}
	store, err := s.backend.Snapshots()
	if err == nil {
		err = store.Save(ctx, s.snapshot, func(dir string) error { return s.sandbox.Snapshot(ctx, dir) })
	}
	if err != nil {
		err = fmt.Errorf("cannot save the sandbox as %s: %w", s.snapshot, err)
		if errors.Is(err, bouvet.ErrUnsupported) {
			err = &problem{err: err, remedy: "another driver; bouvet doctor shows what each can do"}
		}
		return err
	}
	if !s.quiet {
		if info, err := store.Inspect(s.snapshot); err == nil {
			s.say(fmt.Sprintf("the sandbox is saved as %s (%s)", s.snapshot, humanSize(info.Size)))
		}
	}
	return nil
}
