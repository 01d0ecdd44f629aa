package bouvet

import (
	"context"
	"errors"
)

// An ErrorKind says how an error of one kind is told to whom.
type ErrorKind struct {
	// Name is the kind's name in machine-readable output: "not_found".
	Name string
	// Err is the sentinel that errors of this kind match.
	Err error
	// RPCCode is the JSON-RPC error code. An RPCError keeps its own.
	RPCCode int32
	// HTTPStatus is the status of an HTTP answer.
	HTTPStatus int
	// ExitCode is the exit code of the command line: 125 says that Bouvet failed,
	// not the command it ran; 124 that the time was up; 130 that it was cancelled.
	ExitCode int
}

// Codes of JSON-RPC's range for servers that are ours alone.
const (
	codeVM           int32 = -32001
	codeConnection   int32 = -32002
	codeAgentTimeout int32 = -32003
	codeNotFound     int32 = -32004
	codeInvalidState int32 = -32005
	codeLimit        int32 = -32006
	codeTimedOut     int32 = -32007
	codeCancelled    int32 = -32008
	codeRPC          int32 = -32010
)

// errorKinds is the one table of errors. The first row that an error matches is
// its kind: an error may wrap another of a kind further down.
var errorKinds = []ErrorKind{
	{"invalid_config", ErrInvalidConfig, -32602, 400, 125},
	{"not_found", ErrNotFound, codeNotFound, 404, 125},
	{"invalid_state", ErrInvalidState, codeInvalidState, 409, 125},
	{"limit", ErrLimit, codeLimit, 429, 125},
	{"timed_out", ErrTimedOut, codeTimedOut, 504, 124},
	{"unsupported", ErrUnsupported, -32601, 501, 125},
	{"agent_timeout", ErrAgentTimeout, codeAgentTimeout, 504, 125},
	{"vm", ErrVM, codeVM, 502, 125},
	{"connection", ErrConnection, codeConnection, 502, 125},
	{"rpc", ErrRPC, codeRPC, 502, 125},
	{"json", ErrJSON, -32700, 502, 125},
	{"io", ErrIO, -32603, 502, 125},
	{"deadline", context.DeadlineExceeded, codeTimedOut, 504, 124},
	{"cancelled", context.Canceled, codeCancelled, 499, 130},
}

// internalKind is the kind of everything that the table does not name.
var internalKind = ErrorKind{Name: "internal", RPCCode: -32603, HTTPStatus: 500, ExitCode: 125}

// Kind returns the kind of err, which must not be nil. It is total: an error it
// does not know is "internal".
func Kind(err error) ErrorKind {
	for _, k := range errorKinds {
		if errors.Is(err, k.Err) {
			var rpc *RPCError
			if errors.Is(k.Err, ErrRPC) && errors.As(err, &rpc) && rpc.Code != codeLocal {
				k.RPCCode = rpc.Code
			}
			return k
		}
	}
	return internalKind
}

// ErrorKinds returns all kinds, in the order in which Kind tries them.
func ErrorKinds() []ErrorKind { return append([]ErrorKind(nil), errorKinds...) }
