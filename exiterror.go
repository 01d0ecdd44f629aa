package bouvet

import (
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// ExitError is the end of a command that was not a success.
type ExitError struct {
	// Code is the exit code, -1 when a signal ended the command.
	Code int
	// Signal is the signal that ended it, if the agent told.
	Signal syscall.Signal
	// TimedOut means that Cmd.Timeout struck. The error then matches ErrTimedOut.
	TimedOut bool
	// OOMKilled means that the command was killed because memory ran out. A guest with a
	// kernel of its own (QEMU, Firecracker) knows which process that was; some process
	// since the command's start counts where a shell says with the code 137 that SIGKILL
	// ended one of its own, and under gVisor, where the host kills and tells no more than
	// that. When all of a sandbox ends for it, calls fail with vm.ErrOutOfMemory.
	OOMKilled bool
	// Message is the agent's own text about the end, at most 4 KiB and otherwise
	// as it came; often empty.
	Message string
	// Stderr is what Output kept of the standard error.
	Stderr []byte
}

func (e *ExitError) Error() string {
	if e.OOMKilled {
		return e.end() + " (out of memory)"
	}
	return e.end()
}

func (e *ExitError) end() string {
	switch {
	case e.TimedOut && e.Message == "":
		return "command timed out"
	case e.Message != "":
		return printable(e.Message)
	case e.Signal != 0:
		return "signal: " + e.Signal.String()
	default:
		return fmt.Sprintf("exit status %d", e.Code)
	}
}

// Is reports whether target is ErrTimedOut and the command's time was up.
func (e *ExitError) Is(target error) bool { return target == ErrTimedOut && e.TimedOut }

// ExitCode returns the exit code, -1 when a signal ended the command.
func (e *ExitError) ExitCode() int { return e.Code }

// StartError means that the agent could not start the command. It matches
// fs.ErrNotExist and fs.ErrPermission where they are the reason and the program
// is at fault, not its directory.
type StartError struct {
	// Message is the agent's text, such as "fork/exec /no: no such file or
	// directory", at most 4 KiB and otherwise as it came.
	Message string
}

func (e *StartError) Error() string { return "cannot start command: " + printable(e.Message) }

// Is reports whether target is the reason.
func (e *StartError) Is(target error) bool {
	if strings.HasPrefix(e.Message, "chdir ") {
		return false
	}
	switch target {
	case fs.ErrNotExist:
		return strings.HasSuffix(e.Message, "no such file or directory") || strings.HasSuffix(e.Message, "executable file not found in $PATH")
	case fs.ErrPermission:
		return strings.HasSuffix(e.Message, "permission denied")
	default:
		return false
	}
}
