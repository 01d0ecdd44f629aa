package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

func newImageRemoveCommand(w *world) *cobra.Command {
	var asJSON, force bool
	cmd := &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "remove images",
		Long: `Removes names, and with an image's last name the image itself. An image that a
sandbox uses stays.`,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: w.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.imageWork(cmd.Context(), func(ctx context.Context, store *image.Store) error {
				return w.removeImages(ctx, store, args, force, asJSON)
			})
		},
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "a name that does not exist is no error")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// removeImages goes on after an error, so that one image in use does not keep the
// others.
func (w *world) removeImages(ctx context.Context, store *image.Store, names []string, force, asJSON bool) error {
	removed := []string{}
	var errs []error
	for _, name := range names {
		err := store.Remove(ctx, name)
		switch {
		case err == nil:
			removed = append(removed, name)
		case force && errors.Is(err, image.ErrNotFound):
		default:
			errs = append(errs, fmt.Errorf("cannot remove image %s: %w", quoted(name), err))
		}
	}
	if asJSON && len(errs) == 0 {
		return writeJSON(w.stdout, map[string][]string{"removed": removed})
	}
	if !asJSON {
		for _, name := range removed {
			w.printf("%s\n", printable(name, 200))
		}
	}
	return errors.Join(errs...)
}
