package gvisor

import (
	"context"
	"fmt"
	"os"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"
	"gvisor.dev/gvisor/runsc/version"
)

// helperName is the argv[0] of the short-lived helper that we start; the others
// are given by runsc to the processes it makes of itself.
const helperName = "runsc"

// exitOrphan is the status of a process that ends because its owner is gone.
const exitOrphan = 125

// runCommand is runsc's run behind a gate: it makes nothing before the owner has
// put this process into its cgroups, and nothing at all if the owner dies before.
// The move takes some 10 ms, as long as this process needs to get here.
type runCommand struct{ cmd.Run }

// Execute implements subcommands.Command.
func (r *runCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	awaitOwner()
	return r.Run.Execute(ctx, f, args...)
}

// awaitOwner returns when the owner opens the gate.
func awaitOwner() {
	if n, err := os.Stdin.Read(make([]byte, 1)); n != 1 {
		fmt.Fprintln(os.Stderr, "the owner is gone:", err)
		os.Exit(exitOrphan)
	}
}

// Dispatch turns the process into runsc if it was started as such, and then does
// not return. It must be the first call of main and of TestMain. The decision
// rests on argv[0] alone, for runsc starts the sentry with an empty environment.
func Dispatch() {
	umount := new(sentrycmd.Umount)
	switch os.Args[0] {
	case helperName, "runsc-sandbox", "runsc-gofer":
	case "/proc/self/exe": // the sentry's helper that unmounts its /proc
		if len(os.Args) < 2 || os.Args[1] != umount.Name() {
			return
		}
	default:
		return
	}
	cli.Run(nil, map[util.SubCommand]string{
		new(runCommand):     "",
		new(restoreCommand): "",
		new(bootCommand):    "",
		new(cmd.Gofer):      "",
		umount:              "",
	}, nil)
	panic("runsc returned")
}

// Version is the version of the embedded runsc. Saved machines are bound to it.
func Version() string { return version.Version() }
