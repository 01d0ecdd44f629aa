package cli

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
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
	t := tabwriter.NewWriter(w.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tDIGEST\tSIZE\tFILES\tCREATED\tSOURCE")
	for _, info := range infos {
		source := info.Source
		if info.Problem != "" {
			source = "unusable: " + info.Problem
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", cell(info.Name), cell(shortDigest(info.Digest)), humanSize(info.Size),
			info.Inodes, info.Created.Local().Format(time.DateTime), cell(source))
	}
	return t.Flush()
}

// shortDigest is enough of a digest to name an image by.
func shortDigest(digest string) string {
	short := strings.TrimPrefix(digest, "sha256:")
	return short[:min(len(short), 12)]
}
