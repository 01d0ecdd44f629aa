package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

// A verification is the outcome for one image.
type verification struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

func newImageVerifyCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "verify [NAME...]",
		Short: "read images whole and compare their digests",
		Long: `Reads every byte of the named images, or of all, and compares with the digest. It
ends with exit code 1 if one is damaged.`,
		ValidArgsFunction: w.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return w.imageWork(cmd.Context(), func(ctx context.Context, store *image.Store) error {
				return w.verifyImages(ctx, store, args, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func (w *world) verifyImages(ctx context.Context, store *image.Store, names []string, asJSON bool) error {
	if len(names) == 0 {
		infos, err := store.List(ctx)
		if err != nil {
			return err
		}
		for _, info := range infos {
			names = append(names, info.Name)
		}
	}
	results := []verification{}
	code := 0
	for _, name := range names {
		err := store.Verify(ctx, name)
		if ctx.Err() != nil {
			return err
		}
		v := verification{Name: name, OK: err == nil}
		if err != nil {
			v.Error, code = err.Error(), 1
		}
		results = append(results, v)
		if asJSON {
			continue
		}
		if err == nil {
			w.printf("ok    %s\n", cell(name))
			continue
		}
		w.printf("FAIL  %s\n", cell(name))
		w.warn(err)
	}
	if asJSON {
		if err := writeJSON(w.stdout, results); err != nil {
			return err
		}
	}
	return exitWith(code)
}
