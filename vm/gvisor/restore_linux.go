package gvisor

import (
	"context"
	"fmt"
	"os"

	"github.com/google/subcommands"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/specutils"
)

// restoreCommand is runsc's run for a saved machine, behind the same gate. runsc's own
// restore can neither donate a descriptor nor do without root.
type restoreCommand struct {
	bundle, pidFile, image string
}

// Name implements subcommands.Command.
func (*restoreCommand) Name() string { return "restore" }

// Synopsis implements subcommands.Command.
func (*restoreCommand) Synopsis() string { return "start a machine where it was saved" }

// Usage implements subcommands.Command.
func (*restoreCommand) Usage() string { return "restore [flags] <container id>\n" }

// SetFlags implements subcommands.Command.
func (r *restoreCommand) SetFlags(f *flag.FlagSet) {
	f.StringVar(&r.bundle, "bundle", "", "directory of the OCI bundle")
	f.StringVar(&r.pidFile, "pid-file", "", "file that gets the sentry's process number")
	f.StringVar(&r.image, "image-path", "", "directory of the saved state")
}

// FetchSpec implements util.SubCommand.
func (r *restoreCommand) FetchSpec(conf *config.Config, f *flag.FlagSet) (string, *specs.Spec, error) {
	spec, err := specutils.ReadSpec(r.bundle, conf)
	return f.Arg(0), spec, err
}

// Execute implements subcommands.Command.
func (r *restoreCommand) Execute(_ context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	awaitOwner()
	conf, ok := args[0].(*config.Config)
	if !ok || f.NArg() != 1 {
		return util.Errorf("restore is called in a wrong way")
	}
	if err := r.restore(conf, f); err != nil {
		return util.Errorf("%v", err)
	}
	return subcommands.ExitSuccess
}

func (r *restoreCommand) restore(conf *config.Config, f *flag.FlagSet) error {
	if conf.Rootless {
		// Our parent has made this process root of a user namespace of its own.
		if err := specutils.MaybeRunAsRoot(); err != nil {
			return fmt.Errorf("cannot become root of a user namespace: %w", err)
		}
	}
	id, spec, err := r.FetchSpec(conf, f)
	if err != nil {
		return fmt.Errorf("cannot read specification: %w", err)
	}
	c, err := container.New(conf, container.Args{
		ID: id, Spec: spec, BundleDir: r.bundle, PIDFile: r.pidFile,
		PassFiles: map[int]*os.File{channelFD: os.NewFile(channelFD, "channel")},
	})
	if err != nil {
		return fmt.Errorf("cannot create sandbox: %w", err)
	}
	if err := c.Restore(conf, r.image, false, false, nil); err != nil {
		_ = c.Destroy()
		return fmt.Errorf("cannot restore sandbox: %w", err)
	}
	return nil
}
