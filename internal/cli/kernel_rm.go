package cli

import (
	"errors"

	"github.com/spf13/cobra"
)

func newKernelRemoveCommand(w *world) *cobra.Command {
	return &cobra.Command{
		Use:     "rm RELEASE|DIGEST...",
		Aliases: []string{"remove"},
		Short:   "remove guest kernels",
		Long:    `Removes kernels. Sandboxes that run keep theirs.`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			store, err := w.backend.Kernels()
			if err != nil {
				return err
			}
			var errs []error
			for _, name := range args {
				if name == "" {
					return usage("bouvet kernel ls", "cannot remove a kernel without its name")
				}
				k, err := store.Find(name)
				if err == nil {
					err = store.Remove(k)
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				w.printf("%s %s\n", k.Manifest.Release, k.Digest)
			}
			return errors.Join(errs...)
		},
	}
}
