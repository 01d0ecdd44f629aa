package cli

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/kernel"
)

// kernelConfigMax bounds a configuration that is read, in bytes.
const kernelConfigMax = 1 << 20

func newKernelBuildCommand(w *world) *cobra.Command {
	var opts kernel.BuildOptions
	var fragment string
	var asJSON, quiet bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "build the small guest kernel, with which sandboxes start sooner",
		Long: `Builds a small kernel with everything built in that a sandbox needs, from Debian's
` + kernel.SourcePackage + `, which apt downloads and verifies, with a configuration of Bouvet's
own. Nothing is installed, and no root is needed; it takes a C compiler, 1.5 GiB of disk
for the time being and five to ten minutes of a processor's time. make minikernel
installs what is missing.

What make says is kept in the file build.log beside the kernels.`,
		Example: `  bouvet kernel build
  echo CONFIG_BTRFS_FS=y > more.config; bouvet kernel build --config more.config`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opts.Jobs < 0 {
				return usage("bouvet kernel build --help", "cannot build kernel with %d jobs", opts.Jobs)
			}
			if fragment != "" {
				data, err := readBounded(fragment, kernelConfigMax)
				if err != nil {
					return err
				}
				opts.Fragment = data
			}
			return w.makeKernel(cmd.Context(), asJSON, quiet, func(ctx context.Context, store *kernel.Store, p kernel.Progress) (kernel.Kernel, error) {
				opts.Progress = p
				k, err := store.Build(ctx, opts)
				if missing, ok := errors.AsType[*kernel.MissingError](err); ok {
					err = &problem{kind: kindKernelBuild, err: err, remedy: missing.Remedy()}
				} else if err != nil {
					err = &problem{kind: kindKernelBuild, err: err, remedy: "bouvet kernel fetch, for a kernel that needs no building"}
				}
				return k, err
			})
		},
	}
	f := cmd.Flags()
	f.IntVarP(&opts.Jobs, "jobs", "j", 0, "how many compilers run at once (default: one for each processor)")
	f.StringVar(&fragment, "config", "", "set the lines of `FILE` in the configuration as well; they win")
	f.BoolVar(&asJSON, "json", false, "print the kernel as JSON")
	f.BoolVarP(&quiet, "quiet", "q", false, "no progress")
	return cmd
}
