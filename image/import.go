package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// ImportOptions say how an import is done. The zero value is a good one.
type ImportOptions struct {
	// Limits bound what may be imported.
	Limits Limits
	// DropDevices leaves device nodes out instead of refusing them.
	DropDevices bool
	// Whiteouts gives ".wh." names the meaning they have in OCI layers.
	Whiteouts bool
	// Config is kept with the name.
	Config Config
	// Source says where the image comes from, for people.
	Source string
	// Recipe is kept with the name; see Info.Recipe.
	Recipe string
	// Progress is told how the import gets on.
	Progress Progress
}

// ImportLayers makes an image of layers, the lowest first, and gives it a name,
// in place of what had the name before. If an equal image exists already, it
// gets one more name. Whatever goes wrong, nothing is left behind; a killed
// import leaves a temporary file, which the next one removes.
func (s *Store) ImportLayers(ctx context.Context, name string, layers []Layer, opts ImportOptions) (Info, error) {
	return s.build(ctx, name, opts, func(out Output) (Stats, error) {
		return Flatten(ctx, layers, out, FlattenOptions{
			Limits:      opts.Limits,
			Whiteouts:   opts.Whiteouts,
			DropDevices: opts.DropDevices,
			Progress:    opts.Progress,
		})
	})
}

// build makes an image with fill and gives it a name.
func (s *Store) build(ctx context.Context, name string, opts ImportOptions, fill func(Output) (Stats, error)) (Info, error) {
	if err := ValidName(name); err != nil {
		return Info{}, err
	}
	if err := s.cleanTemp(ctx); err != nil {
		return Info{}, err
	}
	f, err := s.newTemp("image")
	if err != nil {
		return Info{}, err
	}
	kept := false
	defer func() {
		if !kept {
			_ = os.Remove(f.Name())
		}
		_ = f.Close()
	}()
	var out Output = f
	if s.wrap != nil {
		out = s.wrap(f)
	}
	stats, err := fill(out)
	if err != nil {
		return Info{}, s.explain(name, err)
	}
	digest, err := hashFile(ctx, f, opts.Progress)
	if err != nil {
		return Info{}, s.explain(name, err)
	}
	opts.Progress.stage("storing the image")
	if err := errors.Join(f.Chmod(0o444), f.Sync()); err != nil {
		return Info{}, s.explain(name, err)
	}
	info := Info{
		Name: name, Digest: digest, Created: time.Now().UTC().Truncate(time.Second),
		Source: opts.Source, Recipe: opts.Recipe, Config: opts.Config,
		Size: stats.Size, Inodes: stats.Inodes, Names: stats.Names, Path: s.blobPath(digest),
	}
	if kept, err = s.commit(ctx, f, info); err != nil {
		return Info{}, s.explain(name, err)
	}
	return info, nil
}

// explain adds the remedy to an error that has one.
func (s *Store) explain(name string, err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("%w; make room in %s or set BOUVET_STATE_DIR to a larger file system", err, s.dir)
	}
	return fmt.Errorf("cannot import image %s: %w", name, err)
}

// commit makes the finished file f the image info.Digest, unless a good one is
// there already, and gives it its name. It reports whether f was taken.
func (s *Store) commit(ctx context.Context, f *os.File, info Info) (kept bool, err error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return false, err
	}
	defer unlock()
	before, err := s.readRef(info.Name)
	if err != nil {
		// No such name yet, or a record that cannot be read: it is replaced.
		before = Info{}
	}
	if !s.haveGood(ctx, info) {
		if err := os.Rename(f.Name(), info.Path); err != nil {
			return false, err
		}
		kept = true
		st, err := stampOf(f)
		if err != nil {
			return kept, err
		}
		if err := errors.Join(syncDir(s.path("blobs")), s.writeStamp(info.Digest, st)); err != nil {
			return kept, err
		}
	}
	if err := s.writeRef(info); err != nil {
		return kept, errors.Join(err, s.dropBlob(ctx, info.Digest))
	}
	if before.Digest != "" && before.Digest != info.Digest {
		// In use, it stays until Clean finds it unused.
		if err := s.dropBlob(ctx, before.Digest); err != nil && !errors.Is(err, ErrInUse) {
			return kept, err
		}
	}
	return kept, nil
}

// haveGood reports whether the image is in the store, undamaged.
func (s *Store) haveGood(ctx context.Context, info Info) bool {
	f, err := os.Open(info.Path)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return s.check(ctx, f, info.Digest, info.Size, false) == nil
}
