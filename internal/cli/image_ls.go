package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

func newImageListCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the images",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return w.imageWork(cmd.Context(), func(ctx context.Context, store *image.Store) error {
				return w.listImages(ctx, store, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func (w *world) listImages(ctx context.Context, store *image.Store, asJSON bool) error {
	infos, err := store.List(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		if infos == nil {
			infos = []image.Info{}
		}
		return writeJSON(w.stdout, infos)
	}
	rows := [][]string{{"NAME", "DIGEST", "SIZE", "FILES", "CREATED", "SOURCE"}}
	for _, info := range infos {
		source := info.Source
		if info.Problem != "" {
			source = "unusable: " + info.Problem
		}
		rows = append(rows, []string{
			info.Name, shortDigest(info.Digest), humanSize(info.Size), strconv.FormatInt(info.Inodes, 10),
			info.Created.Local().Format(time.DateTime), clip(source, 60),
		})
	}
	return w.table(rows)
}

// shortDigest is enough of a digest to name an image by.
func shortDigest(digest string) string {
	short := strings.TrimPrefix(digest, "sha256:")
	return short[:min(len(short), 12)]
}
