package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

func newImageInspectCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "inspect NAME|DIGEST",
		Short:             "show what is known of an image",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: w.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.imageWork(cmd.Context(), func(ctx context.Context, store *image.Store) error {
				info, err := store.Inspect(ctx, args[0])
				if err != nil {
					return fmt.Errorf("cannot inspect image %s: %w", quoted(args[0]), err)
				}
				if asJSON {
					return writeJSON(w.stdout, info)
				}
				return w.showImage(info)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (w *world) showImage(info image.Info) error {
	rows := [][]string{
		{"name", info.Name},
		{"digest", info.Digest},
		{"size", fmt.Sprintf("%s, %d files", humanSize(info.Size), info.Inodes)},
		{"created", info.Created.Local().Format(time.DateTime)},
		{"source", info.Source},
		{"user", info.Config.User},
		{"workdir", info.Config.WorkDir},
		{"command", strings.Join(append(append([]string{}, info.Config.Entrypoint...), info.Config.Cmd...), " ")},
		{"path", info.Path},
	}
	for _, env := range info.Config.Env {
		rows = append(rows, []string{"env", env})
	}
	return w.table(rows)
}
