package cli

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of Bouvet itself; any other is the command's own.
const (
	exitTimeout       = 124
	exitFailure       = 125
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalBase    = 128
)

// exitCodes is the table users see; docs/CLI.md is made of it.
var exitCodes = []struct{ code, meaning string }{
	{"0-123", "the command's own exit code"},
	{"124", "the timeout ended the command"},
	{"125", "Bouvet failed: a wrong flag, a missing image, a sandbox that could not start or died"},
	{"126", "the command was found but cannot be executed"},
	{"127", "the command was not found"},
	{"128+n", "signal n ended the command, or Bouvet before there was one (130 Ctrl-C, 137 SIGKILL, 143 SIGTERM)"},
}

const exitCodesNote = "Other commands than run exit with 0, with 1 when a check failed (doctor, image verify), or with 125."

func newExitCodesTopic() *cobra.Command {
	var long strings.Builder
	long.WriteString("Exit codes of bouvet run:\n\n")
	for _, row := range exitCodes {
		fmt.Fprintf(&long, "  %-7s %s\n", row.code, row.meaning)
	}
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "what the exit codes mean",
		Long:  long.String() + "\n" + exitCodesNote,
	}
}

// An exitError ends the program with a code. Without err everything has been said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// exitWith is the error for a code that needs no words; nil for 0.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return &exitError{code: code}
}

// A signalError is why something was given up: a signal to Bouvet.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return "interrupted by " + signalName(e.signal) }

func (e *signalError) code() int { return exitSignalBase + int(e.signal) }
