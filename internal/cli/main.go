package cli

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/spf13/cobra"
)

// version is set at link time by the Makefile.
var version = "devel"

// Main runs the command line args, which does not begin with the program's name,
// and returns the exit code.
func Main(args []string) int {
	return run(context.Background(), systemWorld(), args)
}

func run(ctx context.Context, w *world, args []string) int {
	root := newRoot(w) //nolint:contextcheck // ExecuteContext hands it over
	root.SetArgs(args)
	root.SetIn(w.stdin)
	root.SetOut(w.stdout)
	root.SetErr(w.stderr)

	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var exit *exitError
	if errors.As(err, &exit) && exit.err == nil {
		return exit.code
	}
	code := exitFailure
	if exit != nil {
		code, err = exit.code, exit.err
	}
	w.report(err, wantsJSON(args))
	return code
}

// wantsJSON looks at the words themselves: a flag that cannot be parsed must be
// reported as JSON too.
func wantsJSON(args []string) bool {
	if i := slices.Index(args, "--"); i >= 0 {
		args = args[:i]
	}
	return slices.Contains(args, "--json") || slices.Contains(args, "--json=true")
}

func newRoot(w *world) *cobra.Command {
	cobra.EnableCommandSorting = false // run comes first
	root := &cobra.Command{
		Use:   "bouvet",
		Short: "run code that nobody trusts in a sandbox of its own",
		Long: `Bouvet runs code that nobody trusts in a sandbox of its own.

Each run gets a fresh sandbox: a kernel of its own, a private copy of an image,
no network, limits on memory and time. Nothing of it is left afterwards.`,
		Example: `  bouvet run -- uname -a
  bouvet run --lang python --code 'print(sum(range(10)))'
  bouvet doctor`,
		Args:              cobra.NoArgs,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors:     true,
		SilenceUsage:      true,
		DisableAutoGenTag: true,
	}
	root.PersistentFlags().BoolVar(&w.debug, "debug", false, "log what Bouvet does to standard error")
	root.SetFlagErrorFunc(usageError)
	root.AddCommand(
		newRunCommand(w),
		newServeCommand(w),
		newKeyCommand(w),
		newImageCommand(w),
		newKernelCommand(w),
		newSnapshotCommand(w),
		newLogsCommand(w),
		newDoctorCommand(w),
		newVersionCommand(w),
		newExitCodesTopic(),
		newGenDocsCommand(),
	)
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Short = "print the completion script for a shell"
		case "help":
			cmd.Short = "help about any command"
		}
	}
	wrapArgs(root)
	return root
}

// wrapArgs makes a wrong number of arguments a usage error like a wrong flag, and
// guesses what a mistyped command was to be.
func wrapArgs(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil {
				return nil
			}
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args0(args)); cmd.HasSubCommands() && len(near) > 0 {
				return &problem{kind: kindUsage, err: err, remedy: cmd.CommandPath() + " " + near[0]}
			}
			return usageError(cmd, err)
		}
	}
	for _, sub := range cmd.Commands() {
		wrapArgs(sub)
	}
}

func args0(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}

// asFile returns v as a file if it is one.
func asFile(v any) (*os.File, bool) {
	f, ok := v.(*os.File)
	return f, ok && f != nil
}
