package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

func newKernelFetchCommand(w *world) *cobra.Command {
	var opts kernel.FetchOptions
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "fetch",
		Short: "fetch Debian's cloud kernel",
		Long: `Downloads the current package of Debian's cloud kernel with apt, from the mirrors
that this host is set up for, and keeps its uncompressed image and the modules that
a sandbox needs. apt verifies the package. Nothing is installed, and no root is needed.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return w.makeKernel(cmd.Context(), asJSON, quiet, func(ctx context.Context, store *kernel.Store, p kernel.Progress) (kernel.Kernel, error) {
				opts.Progress = p
				k, err := store.Fetch(ctx, opts)
				if err != nil {
					err = &problem{kind: kindKernelFetch, err: fmt.Errorf("cannot fetch kernel: %w", err), remedy: "apt-get update, then bouvet kernel fetch again"}
				}
				return k, err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Package, "package", "", "the `PACKAGE` to fetch (default: the one that "+kernel.MetaPackage+" depends on)")
	f.BoolVar(&asJSON, "json", false, "print the kernel as JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

// makeKernel has work put a kernel into the store, shows how it gets on, and prints
// the kernel.
func (w *world) makeKernel(ctx context.Context, asJSON, quiet bool, work func(context.Context, *kernel.Store, kernel.Progress) (kernel.Kernel, error)) error {
	store, err := w.backend.Kernels()
	if err != nil {
		return err
	}
	ctx, done := w.interruptible(ctx)
	defer done()
	line := startProgress(w.stderr)
	var progress kernel.Progress
	if !quiet {
		progress = func(step string, done, total int64) {
			line.event(image.Event{Stage: step, Done: done, Total: total})
		}
	}
	k, err := work(ctx, store, progress)
	line.clear()
	switch {
	case err != nil && ctx.Err() != nil:
		return interrupted(ctx, err)
	case err != nil:
		return err
	case asJSON:
		return writeJSON(w.stdout, k)
	}
	_, err = fmt.Fprintf(w.stdout, "%s %s (%s, %d modules)\n", k.Manifest.Release, k.Digest, humanSize(k.Size), len(k.Manifest.Modules))
	return err
}
