package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

type imageBuildCommand struct {
	*world
	opts  image.BuildOptions
	json  bool
	quiet bool
}

func newImageBuildCommand(w *world) *cobra.Command {
	c := &imageBuildCommand{world: w}
	cmd := &cobra.Command{
		Use:   "build-default",
		Short: "make the image that sandboxes get by default",
		Long: `Makes the default image: Debian bookworm with Python 3.11, Node.js 20, bash, git,
curl and an account "user". It needs mmdebstrap and npm, a network, and root or
user namespaces. An image that is there and up to date is left as it is.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.run(cmd.Context()) },
	}
	f := cmd.Flags()
	f.BoolVar(&c.opts.Force, "force", false, "make it again even if it is up to date")
	f.BoolVar(&c.opts.InstallTools, "install-tools", false, "install missing tools with apt-get (as root)")
	f.StringVar(&c.opts.Mirror, "mirror", "", "the Debian mirror to use, a `URL`")
	f.BoolVar(&c.json, "json", false, "print the image as JSON")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "no progress")
	return cmd
}

func (c *imageBuildCommand) run(ctx context.Context) error {
	return c.imageWork(ctx, func(ctx context.Context, store *image.Store) error {
		info, err := c.buildDefault(ctx, store, c.opts, c.quiet)
		if err != nil {
			return err
		}
		return c.printImage(info, c.json)
	})
}

// printImage tells which image a command has made.
func (w *world) printImage(info image.Info, asJSON bool) error {
	if asJSON {
		return writeJSON(w.stdout, info)
	}
	_, err := fmt.Fprintf(w.stdout, "%s %s (%s, %d files)\n", info.Name, info.Digest, humanSize(info.Size), info.Inodes)
	return err
}
