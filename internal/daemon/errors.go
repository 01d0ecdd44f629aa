package daemon

import (
	"errors"
	"fmt"
	"time"
)

// What goes wrong, to be found with errors.Is. Errors of the machines are those of
// package bouvet.
var (
	// ErrNotFound means that there is nothing of that name, or that it is another's.
	ErrNotFound = errors.New("not found")
	// ErrInvalid means that a request cannot be served as it is.
	ErrInvalid = errors.New("invalid request")
	// ErrConflict means that the sandbox is not in a state for this: it is paused
	// already, or not running.
	ErrConflict = errors.New("conflict")
	// ErrBusy means that something else is being done with the sandbox: try again.
	ErrBusy = errors.New("busy")
	// ErrUnauthorized means that a key or token is missing, wrong or revoked.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrUnsupported means that this host, driver or version of Bouvet cannot do it.
	ErrUnsupported = errors.New("not supported")
	// ErrDraining means that the daemon ends and creates nothing any more.
	ErrDraining = errors.New("the daemon is shutting down")
	// ErrQuota means that a limit is reached; QuotaError says which.
	ErrQuota = errors.New("limit reached")
)

// QuotaError means that a limit is reached.
type QuotaError struct {
	// What is limited: "sandboxes of this key", "memory of this host".
	What string
	Max  int
	// RetryAfter is when to try again.
	RetryAfter time.Duration
}

// Error implements error.
func (e *QuotaError) Error() string {
	return fmt.Sprintf("%s: %v (at most %d): end some, or try again later", e.What, ErrQuota, e.Max)
}

// Is reports whether target is ErrQuota.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }
