package image

import (
	"context"
	"fmt"
	"runtime"
	"sync"
)

// BuildOptions say how BuildDefault works. The zero value is a good one.
type BuildOptions struct {
	// Force builds the image even if it is there and its recipe is unchanged.
	Force bool
	// InstallTools installs the programs the build needs with apt-get where they
	// are missing. Only root can.
	InstallTools bool
	// Mirror is the Debian mirror to use; empty means Debian's own servers.
	Mirror string
	// Progress is told how the build gets on.
	Progress Progress
}

// BuildDefault makes the image that sandboxes get when no other is asked for:
// Debian bookworm with Python 3.11, Node.js 20, bash 5.2, git, curl, and an
// account "user" (uid 1000) that may use sudo. It needs mmdebstrap and npm, a
// network, and either root or unprivileged user namespaces. It returns at once
// if the image is there, undamaged, and was made by the same recipe.
func BuildDefault(ctx context.Context, s *Store, opts BuildOptions) (Info, error) {
	if runtime.GOARCH != "amd64" {
		return Info{}, fmt.Errorf("cannot build the default image: there is a recipe for amd64 only, not for %s; import an image instead", runtime.GOARCH)
	}
	r := defaultRecipe()
	r.Mirror = opts.Mirror
	digest, err := r.digest()
	if err != nil {
		return Info{}, err
	}
	if !opts.Force {
		if info, ok := s.current(ctx, digest); ok {
			return info, nil
		}
	}
	if err := ensureTools(ctx, opts.InstallTools, opts.Progress); err != nil {
		return Info{}, fmt.Errorf("cannot build the default image: %w", err)
	}
	dir, release, err := s.newTempDir("build")
	if err != nil {
		return Info{}, err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	// Node.js arrives while Debian is being installed.
	progress := opts.Progress.serial()
	var node struct {
		path string
		err  error
		done chan struct{}
	}
	node.done = make(chan struct{})
	go func() {
		defer close(node.done)
		if node.path, node.err = fetchNode(ctx, r, dir); node.err != nil {
			cancel() // no use in going on
		}
	}()
	defer func() { cancel(); <-node.done }()
	wait := func(ctx context.Context) (string, error) {
		progress.stage("downloading Node.js")
		select {
		case <-node.done:
			return node.path, node.err
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}

	info, err := s.ImportLayers(ctx, DefaultName, []Layer{debianLayer(r, dir, progress), nodeLayer(wait, r.Epoch)}, ImportOptions{
		Config: r.Config, Source: r.source(), Recipe: digest, Progress: progress,
	})
	if err != nil {
		select {
		case <-node.done:
			if node.err != nil {
				err = node.err // it is what ended the build
			}
		default:
		}
		return Info{}, fmt.Errorf("cannot build the default image: %w", err)
	}
	return info, nil
}

// current returns the default image if it is good and of this recipe.
func (s *Store) current(ctx context.Context, recipe string) (Info, bool) {
	h, err := s.Acquire(ctx, DefaultName)
	if err != nil {
		return Info{}, false
	}
	defer func() { _ = h.Release() }()
	return h.Info(), h.Info().Recipe == recipe
}

// serial returns p for use by several goroutines.
func (p Progress) serial() Progress {
	if p == nil {
		return nil
	}
	var mu sync.Mutex
	return func(e Event) {
		mu.Lock()
		defer mu.Unlock()
		p(e)
	}
}
