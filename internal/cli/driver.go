package cli

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet/local"
)

// addDriverFlag adds --driver, whose default the environment may set.
func addDriverFlag(cmd *cobra.Command, w *world, name *string) {
	cmd.Flags().StringVar(name, "driver", "", "what runs the sandbox, a `DRIVER`: "+strings.Join(driverNames, ", ")+
		" (default $"+local.DriverEnv+", else "+local.Auto+")")
	completeFlag(cmd, "driver", fixed(driverNames))
	previous := cmd.PreRun
	cmd.PreRun = func(cmd *cobra.Command, args []string) {
		if value, ok := w.lookupEnv(local.DriverEnv); ok && *name == "" {
			*name = value
		}
		if *name == "" {
			*name = local.Auto
		}
		if previous != nil {
			previous(cmd, args)
		}
	}
}

func checkDriverName(name string) error {
	if slices.Contains(driverNames, name) {
		return nil
	}
	return usage("--driver "+local.Auto, "cannot use --driver %s: there is no such driver; there are: %s", quoted(name), strings.Join(driverNames, ", "))
}
