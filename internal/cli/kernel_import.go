package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/kernel"
)

func newKernelImportCommand(w *world) *cobra.Command {
	var opts kernel.ImportOptions
	var config string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "import a guest kernel of your own",
		Long: `Imports a kernel: an ELF image (vmlinux) for x86-64 with a PVH entry (CONFIG_PVH), or a
bzImage that contains one. Where its configuration is known, from --config or because
the image carries it (CONFIG_IKCONFIG), it must have what a sandbox needs. A kernel
whose configuration is not known is used only when $BOUVET_KERNEL names it.`,
		Example: `  bouvet kernel import linux/vmlinux --config linux/.config
  bouvet kernel import /boot/vmlinuz-6.1.0-39-amd64 --modules /lib/modules/6.1.0-39-amd64 \
    --config /boot/config-6.1.0-39-amd64`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if config != "" {
				data, err := readBounded(config, kernelConfigMax)
				if err != nil {
					return err
				}
				opts.Config = data
			}
			return w.makeKernel(cmd.Context(), asJSON, true, func(ctx context.Context, store *kernel.Store, _ kernel.Progress) (kernel.Kernel, error) {
				return store.Import(ctx, args[0], opts)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&opts.Modules, "modules", "", "the `DIR` with the kernel's modules, if it needs some")
	f.StringVar(&config, "config", "", "the kernel's configuration, a `FILE` (.config)")
	f.BoolVar(&asJSON, "json", false, "print the kernel as JSON")
	return cmd
}
