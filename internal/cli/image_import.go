package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/image"
)

type imageImportCommand struct {
	*world
	opts  image.ImportOptions
	limit byteSize
	json  bool
	quiet bool
}

func newImageImportCommand(w *world) *cobra.Command {
	c := &imageImportCommand{world: w}
	cmd := &cobra.Command{
		Use:   "import FILE|DIR|- [NAME]",
		Short: "make an image of a tar archive or a directory",
		Long: `Makes an image of a tar archive (plain, gzip or zstd; "-" is standard input) or of
a directory of the host. Without NAME it is named after the file. The same
content always gives the same image. Archives are not trusted: paths that lead
outside, devices and bombs are refused.`,
		Example: `  bouvet image import rootfs.tar.gz
  docker export $(docker create alpine) | bouvet image import - alpine
  bouvet run --image alpine -- cat /etc/os-release`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args) },
	}
	f := cmd.Flags()
	f.StringVarP(&c.opts.Config.User, "user", "u", "", "the `USER` commands run as by default")
	f.StringVarP(&c.opts.Config.WorkDir, "workdir", "w", "", "the `DIR` commands run in by default")
	f.StringArrayVarP(&c.opts.Config.Env, "env", "e", nil, "set `NAME=VALUE` for every command")
	f.BoolVar(&c.opts.DropDevices, "drop-devices", false, "leave device nodes out instead of refusing them")
	f.Var(&c.limit, "max-size", "refuse more content than this (default 16G)")
	f.BoolVar(&c.json, "json", false, "print the image as JSON")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "no progress")
	return cmd
}

func (c *imageImportCommand) run(ctx context.Context, args []string) error {
	path, name := args[0], ""
	if len(args) > 1 {
		name = args[1]
	} else if name = nameOf(path); name == "" {
		return usage("bouvet image import FILE NAME", "cannot import %s: no name follows from it", quoted(path))
	}
	if err := image.ValidName(name); err != nil {
		return usage("bouvet image import FILE NAME", "cannot import: %w", err)
	}
	env, err := environment(nil, c.opts.Config.Env, c.lookupEnv)
	if err != nil {
		return &problem{kind: kindUsage, err: err}
	}
	c.opts.Config.Env = env
	c.opts.Limits.TotalBytes = int64(c.limit)
	return c.imageWork(ctx, func(ctx context.Context, store *image.Store) error {
		line := startProgress(c.stderr)
		if !c.quiet {
			c.opts.Progress = line.event
		}
		var info image.Info
		var err error
		if path == "-" {
			c.opts.Source = "standard input"
			info, err = store.ImportTar(ctx, name, c.stdin, c.opts)
		} else {
			info, err = store.Import(ctx, name, path, c.opts)
		}
		line.clear()
		if err != nil {
			return fmt.Errorf("cannot import %s: %w", quoted(path), err)
		}
		return c.printImage(info, c.json)
	})
}

var notInNames = regexp.MustCompile(`[^a-z0-9._-]+`)

// nameOf makes the name of an image from that of a file: "Root FS.tar.gz" becomes
// "root-fs". It is empty where nothing is left.
func nameOf(path string) string {
	if path == "-" {
		return ""
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	name := strings.ToLower(filepath.Base(abs))
	for _, suffix := range []string{".gz", ".tgz", ".zst", ".zstd", ".tar"} {
		name = strings.TrimSuffix(name, suffix)
	}
	return strings.Trim(notInNames.ReplaceAllString(name, "-"), ".-_")
}
