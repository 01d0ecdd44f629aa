package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

func newKernelCommand(w *world) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "fetch and list guest kernels",
		Long: `Guest kernels are for sandboxes that are virtual machines (--driver qemu). The last
one added is used. They are kept in the state directory, which bouvet doctor shows
and BOUVET_STATE_DIR changes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKernelFetchCommand(w), newKernelListCommand(w), newKernelInspectCommand(w))
	return cmd
}

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
			return w.fetchKernel(cmd.Context(), opts, asJSON, quiet)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Package, "package", "", "the `PACKAGE` to fetch (default: the one that "+kernel.MetaPackage+" depends on)")
	f.BoolVar(&asJSON, "json", false, "print the kernel as JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}

func (w *world) fetchKernel(ctx context.Context, opts kernel.FetchOptions, asJSON, quiet bool) error {
	store, err := w.backend.Kernels()
	if err != nil {
		return err
	}
	ctx, done := w.interruptible(ctx)
	defer done()
	line := startProgress(w.stderr)
	if !quiet {
		opts.Progress = func(step string) { line.event(image.Event{Stage: step}) }
	}
	k, err := store.Fetch(ctx, opts)
	line.clear()
	switch {
	case err != nil && ctx.Err() != nil:
		return interrupted(ctx, err)
	case err != nil:
		return &problem{kind: kindKernelFetch, err: err, remedy: "apt-get update, then bouvet kernel fetch again"}
	case asJSON:
		return writeJSON(w.stdout, k)
	}
	_, err = fmt.Fprintf(w.stdout, "%s %s (%s, %d modules)\n", k.Manifest.Release, k.Digest, humanSize(k.Size), len(k.Manifest.Modules))
	return err
}

func newKernelListCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "list the guest kernels",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			store, err := w.backend.Kernels()
			if err != nil {
				return err
			}
			all, err := store.List()
			if err != nil {
				return err
			}
			if asJSON {
				if all == nil {
					all = []kernel.Kernel{}
				}
				return writeJSON(w.stdout, all)
			}
			rows := [][]string{{"RELEASE", "DIGEST", "SIZE", "MODULES", "ADDED", "PACKAGE"}}
			for _, k := range all {
				rows = append(rows, []string{
					k.Manifest.Release, shortDigest(k.Digest), humanSize(k.Size), strconv.Itoa(len(k.Manifest.Modules)),
					k.Added.Local().Format(time.DateTime), k.Manifest.Package + " " + k.Manifest.Version,
				})
			}
			return w.table(rows)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

func newKernelInspectCommand(w *world) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inspect [RELEASE|DIGEST]",
		Short: "show what is known of a guest kernel, and verify it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := ""
			if len(args) > 0 {
				name = args[0]
			}
			store, err := w.backend.Kernels()
			if err != nil {
				return err
			}
			k, err := store.Find(name)
			if err != nil {
				return err
			}
			if err := k.Verify(); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(w.stdout, k)
			}
			return w.showKernel(&k)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func (w *world) showKernel(k *kernel.Kernel) error {
	m := &k.Manifest
	rows := [][]string{
		{"release", m.Release},
		{"digest", k.Digest},
		{"package", m.Package + " " + m.Version},
		{"source", m.Source},
		{"added", k.Added.Local().Format(time.DateTime)},
		{"path", k.Dir},
	}
	for _, p := range append([]kernel.Part{m.Image}, m.Modules...) {
		rows = append(rows, []string{p.Name, humanSize(p.Size) + " " + shortDigest(p.Digest)})
	}
	return w.table(rows)
}
