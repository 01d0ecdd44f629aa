package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// A problem is an error with what a user needs beside its cause.
type problem struct {
	// kind is what scripts match in the JSON form.
	kind string
	err  error
	// remedy follows "try: "; it may be empty.
	remedy string
}

func (p *problem) Error() string { return p.err.Error() }

func (p *problem) Unwrap() error { return p.err }

// usage is a problem with what was typed.
func usage(remedy, format string, args ...any) error {
	return &problem{kind: kindUsage, err: fmt.Errorf(format, args...), remedy: remedy}
}

func usageError(cmd *cobra.Command, err error) error {
	return &problem{kind: kindUsage, err: err, remedy: cmd.CommandPath() + " --help"}
}

// cannot is a failure to do something, for which the remedy is known here.
func cannot(kind, remedy string, format string, args ...any) error {
	return &problem{kind: kind, err: fmt.Errorf("cannot "+format, args...), remedy: remedy}
}
