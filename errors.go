package bouvet

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/vm"
)

// Sentinels, one for each kind of error; to be found with errors.Is. Those that
// carry more have a type as well, to be found with errors.As.
var (
	// ErrVM means that the machine could not be made or run, or has ended.
	ErrVM = errors.New("VM error")
	// ErrConnection means that the agent's port could not be reached.
	ErrConnection = errors.New("connection failed")
	// ErrAgentTimeout means that the agent did not answer in the time to connect.
	ErrAgentTimeout = errors.New("agent timeout")
	// ErrRPC means that the agent answered with an error, or not in time.
	ErrRPC = errors.New("RPC error")
	// ErrNotFound means that there is no sandbox of that ID.
	ErrNotFound = errors.New("sandbox not found")
	// ErrInvalidState means that the sandbox is in another state than the call needs.
	ErrInvalidState = errors.New("invalid state")
	// ErrJSON means that a message could not be encoded, or that what the agent
	// sent breaks the protocol.
	ErrJSON = errors.New("JSON error")
	// ErrIO means that a stream to the agent broke.
	ErrIO = errors.New("I/O error")
	// ErrLimit means that the manager holds as many sandboxes as it may.
	ErrLimit = errors.New("sandbox limit reached")
	// ErrInvalidConfig means that a Config was refused before anything was made.
	ErrInvalidConfig = errors.New("invalid configuration")
	// ErrTimedOut means that a command was ended because its time was up.
	ErrTimedOut = errors.New("timed out")
	// ErrUnsupported means that the agent or the driver cannot do what was asked.
	ErrUnsupported = vm.ErrUnsupported
)

// VMError is a failure of the machine under a sandbox. When the machine has
// ended, it wraps vm.ErrGone.
type VMError struct{ Err error }

func (e *VMError) Error() string { return "VM error: " + e.Err.Error() }

// Unwrap returns the driver's error.
func (e *VMError) Unwrap() error { return e.Err }

// Is reports whether target is ErrVM.
func (e *VMError) Is(target error) bool { return target == ErrVM }

// ConnectionError means that a port of the agent could not be reached. Its text
// carries those of seed 000: "socket connect failed", "handshake failed" and
// "handshake write failed".
type ConnectionError struct{ Err error }

func (e *ConnectionError) Error() string { return "connection failed: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ConnectionError) Unwrap() error { return e.Err }

// Is reports whether target is ErrConnection.
func (e *ConnectionError) Is(target error) bool { return target == ErrConnection }

// AgentTimeoutError means that no ping was answered in the time to connect.
type AgentTimeoutError struct {
	// Timeout is the time that was given.
	Timeout time.Duration
	// Attempts is how many connections were tried.
	Attempts int
	// Last is why the last attempt failed: a refused connection (no agent runs)
	// differs from one that nobody answered. It may be nil.
	Last error
}

func (e *AgentTimeoutError) Error() string {
	s := fmt.Sprintf("agent timeout after %v", e.Timeout)
	if e.Last != nil {
		s += fmt.Sprintf(" and %d attempts, the last: %v", e.Attempts, e.Last)
	}
	return s
}

// Unwrap returns why the last attempt failed.
func (e *AgentTimeoutError) Unwrap() error { return e.Last }

// Is reports whether target is ErrAgentTimeout.
func (e *AgentTimeoutError) Is(target error) bool { return target == ErrAgentTimeout }

// RPCError is the agent's answer that a call failed. Code wire.CodeLocal (-1) is
// the client's own: "response timeout" and "missing result in response".
type RPCError struct {
	Code int32
	// Message is the guest's text, at most 4 KiB and otherwise as it came: quote
	// it wherever it is shown. Error does.
	Message string
}

func (e *RPCError) Error() string {
	return fmt.Sprintf("RPC error %d: %s", e.Code, printable(e.Message))
}

// Is reports whether target is ErrRPC.
func (e *RPCError) Is(target error) bool { return target == ErrRPC }

// Timeout reports whether the agent did not answer in time.
func (e *RPCError) Timeout() bool { return e.Code == codeLocal && e.Message == msgResponseTimeout }

// NotFoundError means that the manager has no sandbox of that ID.
type NotFoundError struct{ ID SandboxID }

func (e *NotFoundError) Error() string { return fmt.Sprintf("sandbox not found: %s", e.ID) }

// Is reports whether target is ErrNotFound.
func (e *NotFoundError) Is(target error) bool { return target == ErrNotFound }

// InvalidStateError means that a sandbox is in another state than a call needs. A
// sandbox whose machine died by itself answers with a VMError instead.
type InvalidStateError struct{ Expected, Actual State }

func (e *InvalidStateError) Error() string {
	return fmt.Sprintf("invalid state: expected %s, got %s", e.Expected, e.Actual)
}

// Is reports whether target is ErrInvalidState.
func (e *InvalidStateError) Is(target error) bool { return target == ErrInvalidState }

// JSONError means that a message could not be encoded, or that what the agent
// sent is not what the protocol allows: malformed, too long, or untrue.
type JSONError struct{ Err error }

func (e *JSONError) Error() string { return "JSON error: " + printable(e.Err.Error()) }

// Unwrap returns the cause.
func (e *JSONError) Unwrap() error { return e.Err }

// Is reports whether target is ErrJSON.
func (e *JSONError) Is(target error) bool { return target == ErrJSON }

// IOError means that a stream to the agent broke, or ended where more was due.
type IOError struct{ Err error }

func (e *IOError) Error() string { return "I/O error: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *IOError) Unwrap() error { return e.Err }

// Is reports whether target is ErrIO.
func (e *IOError) Is(target error) bool { return target == ErrIO }

// LimitError means that the manager holds as many sandboxes as it may.
type LimitError struct{ Max int }

func (e *LimitError) Error() string {
	return fmt.Sprintf("max sandbox limit reached (%d); destroy one first", e.Max)
}

// Is reports whether target is ErrLimit.
func (e *LimitError) Is(target error) bool { return target == ErrLimit }

// TimeoutError means that a command was ended because its time was up.
type TimeoutError struct {
	Timeout time.Duration
	// Result is what the command had written until then. It is nil when the agent
	// did not tell.
	Result *ExecResult
}

func (e *TimeoutError) Error() string { return fmt.Sprintf("command timed out after %v", e.Timeout) }

// Is reports whether target is ErrTimedOut.
func (e *TimeoutError) Is(target error) bool { return target == ErrTimedOut }

// UnsupportedError means that the agent in the guest is older than what was
// asked of it.
type UnsupportedError struct {
	// What names the missing method or capability.
	What string
}

func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("the guest's agent does not support %s; use an image with a newer agent", e.What)
}

// Is reports whether target is ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == ErrUnsupported }

// maxGuestText is how much text of a guest's choosing goes into an error or an
// attribute of a log record, in bytes (threat T23).
const maxGuestText = 4 << 10

// capText cuts s to maxGuestText bytes at a character boundary.
func capText(s string) string {
	if len(s) <= maxGuestText {
		return s
	}
	cut := maxGuestText
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// printable returns s cut to a bound, and quoted if it holds anything that could
// act on a terminal or forge a line.
func printable(s string) string {
	s = capText(s)
	if utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return s
	}
	return strconv.Quote(s)
}
