package gvisor

import (
	"fmt"
	"os"

	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/version"
)

// helperName is the argv[0] of the short-lived helper that we start; the others
// are given by runsc to the processes it makes of itself.
const helperName = "runsc"

// exitHelper is the helper's status when it fails before runsc takes over.
const exitHelper = 125

// Dispatch turns the process into runsc if it was started as such, and then does
// not return. It must be the first call of main and of TestMain. The decision
// rests on argv[0] alone, for runsc starts the sentry with an empty environment.
func Dispatch() {
	umount := new(sentrycmd.Umount)
	switch os.Args[0] {
	case helperName:
		if err := joinCgroups(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(exitHelper)
		}
	case "runsc-sandbox", "runsc-gofer":
	case "/proc/self/exe": // the sentry's helper that unmounts its /proc
		if len(os.Args) < 2 || os.Args[1] != umount.Name() {
			return
		}
	default:
		return
	}
	cli.Run(nil, map[util.SubCommand]string{
		new(cmd.Run):     "",
		new(bootCommand): "",
		new(cmd.Gofer):   "",
		umount:           "",
	}, nil)
	panic("runsc returned")
}

// Version is the version of the embedded runsc. Saved machines are bound to it.
func Version() string { return version.Version() }
