package cli

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/local"
)

func newKernelCommand(w *world) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kernel",
		Short: "fetch, build and list guest kernels",
		Long: `Guest kernels are for sandboxes that are virtual machines (--driver qemu). The one
that $BOUVET_KERNEL names (a release, or the beginning of a digest) is used; else one
that is known to need no modules, as bouvet kernel build makes them, rather than one
with modules, as bouvet kernel fetch gets them, and among these the last one added.
They are kept in the state directory, which bouvet doctor shows and BOUVET_STATE_DIR
changes.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKernelFetchCommand(w), newKernelBuildCommand(w), newKernelImportCommand(w),
		newKernelListCommand(w), newKernelInspectCommand(w), newKernelRemoveCommand(w))
	return cmd
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
			used, err := store.Find(w.kernelName())
			if err != nil && !errors.Is(err, kernel.ErrNone) {
				return err
			}
			rows := [][]string{{"USED", "RELEASE", "DIGEST", "SIZE", "MODULES", "ADDED", "PACKAGE"}}
			for _, k := range all {
				mark := ""
				if k.Digest == used.Digest {
					mark = "*"
				}
				rows = append(rows, []string{
					mark, k.Manifest.Release, shortDigest(k.Digest), humanSize(k.Size), strconv.Itoa(len(k.Manifest.Modules)),
					k.Added.Local().Format(time.DateTime), origin(&k.Manifest),
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
			name := w.kernelName()
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

// kernelName names the kernel that sandboxes use; empty means the store's choice.
func (w *world) kernelName() string {
	name, _ := w.lookupEnv(local.KernelEnv)
	return name
}

// origin says where a kernel is from.
func origin(m *kernel.Manifest) string {
	if m.Package == "" {
		return "(imported)"
	}
	return m.Package + " " + m.Version
}

func (w *world) showKernel(k *kernel.Kernel) error {
	m := &k.Manifest
	rows := [][]string{
		{"release", m.Release},
		{"digest", k.Digest},
		{"package", origin(m)},
		{"source", m.Source},
		{"added", k.Added.Local().Format(time.DateTime)},
		{"path", k.Dir},
	}
	var features []string
	for _, f := range m.Features {
		features = append(features, string(f))
	}
	rows = append(rows, []string{"features", strings.Join(features, " ")})
	parts := append([]kernel.Part{m.Image}, m.Modules...)
	if m.Config != nil {
		parts = append(parts, *m.Config)
	}
	for _, p := range parts {
		rows = append(rows, []string{p.Name, humanSize(p.Size) + " " + shortDigest(p.Digest)})
	}
	return w.table(rows)
}
