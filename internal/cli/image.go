package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

func newImageCommand(w *world) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "make, list and remove images",
		Long: `Images are the root file systems of sandboxes: read-only files that all sandboxes
share, named by their content. They are kept in the state directory, which
bouvet doctor shows and BOUVET_STATE_DIR changes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newImageBuildCommand(w),
		newImageImportCommand(w),
		newImageListCommand(w),
		newImageInspectCommand(w),
		newImageRemoveCommand(w),
		newImageVerifyCommand(w),
	)
	return cmd
}

// imageWork runs do with the store and a context that the first signal ends.
func (w *world) imageWork(ctx context.Context, do func(context.Context, *image.Store) error) error {
	store, err := w.backend.Images()
	if err != nil {
		return err
	}
	ctx, done := w.interruptible(ctx)
	defer done()
	return interrupted(ctx, do(ctx, store))
}

// buildDefault makes the default image and shows how that gets on.
func (w *world) buildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions, quiet bool) (image.Info, error) {
	line := startProgress(w.stderr)
	if !quiet {
		opts.Progress = line.event
	}
	began := time.Now()
	info, err := w.backend.BuildDefault(ctx, store, opts)
	line.clear()
	switch {
	case err == nil:
		if !quiet && time.Since(began) > time.Second {
			w.say(fmt.Sprintf("the default image is ready: %s in %s", humanSize(info.Size), time.Since(began).Round(time.Second)))
		}
		return info, nil
	case errors.Is(context.Cause(ctx), context.Canceled) || ctx.Err() != nil:
		return info, err
	default:
		return info, &problem{kind: "image_build", err: err, remedy: "bouvet image build-default --install-tools, as root; or bouvet image import FILE default"}
	}
}
