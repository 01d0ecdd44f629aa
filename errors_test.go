package bouvet_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// H1, K7: each error matches its sentinel through wrapping, has the text of the
// reference, and one row of the table.
func TestErrorKinds(t *testing.T) {
	id := bouvet.NewSandboxID()
	for _, tt := range []struct {
		err     error
		is      []error
		text    string
		name    string
		rpcCode int32
		http    int
		exit    int
	}{
		{&bouvet.VMError{Err: vm.ErrGone}, []error{bouvet.ErrVM, vm.ErrGone}, "VM error: machine is gone", "vm", -32001, 502, 125},
		{&bouvet.ConnectionError{Err: io.EOF}, []error{bouvet.ErrConnection, io.EOF}, "connection failed: EOF", "connection", -32002, 502, 125},
		{&bouvet.AgentTimeoutError{Timeout: 10 * time.Second}, []error{bouvet.ErrAgentTimeout}, "agent timeout after 10s", "agent_timeout", -32003, 504, 125},
		{&bouvet.AgentTimeoutError{Timeout: time.Second, Attempts: 3, Last: &bouvet.ConnectionError{Err: io.EOF}}, []error{bouvet.ErrAgentTimeout, bouvet.ErrConnection}, "agent timeout after 1s and 3 attempts, the last: connection failed: EOF", "agent_timeout", -32003, 504, 125},
		{&bouvet.RPCError{Code: -32603, Message: "failed"}, []error{bouvet.ErrRPC}, "RPC error -32603: failed", "rpc", -32603, 502, 125},
		{&bouvet.RPCError{Code: -1, Message: "response timeout"}, []error{bouvet.ErrRPC}, "RPC error -1: response timeout", "rpc", -32010, 502, 125},
		{&bouvet.NotFoundError{ID: id}, []error{bouvet.ErrNotFound}, "sandbox not found: " + id.String(), "not_found", -32004, 404, 125},
		{&bouvet.InvalidStateError{Expected: bouvet.Ready, Actual: bouvet.Destroyed}, []error{bouvet.ErrInvalidState}, "invalid state: expected ready, got destroyed", "invalid_state", -32005, 409, 125},
		{&bouvet.JSONError{Err: io.ErrUnexpectedEOF}, []error{bouvet.ErrJSON, io.ErrUnexpectedEOF}, "JSON error: unexpected EOF", "json", -32700, 502, 125},
		{&bouvet.IOError{Err: io.EOF}, []error{bouvet.ErrIO, io.EOF}, "I/O error: EOF", "io", -32603, 502, 125},
		{&bouvet.LimitError{Max: 3}, []error{bouvet.ErrLimit}, "max sandbox limit reached (3); destroy one first", "limit", -32006, 429, 125},
		{&bouvet.TimeoutError{Timeout: time.Second}, []error{bouvet.ErrTimedOut}, "command timed out after 1s", "timed_out", -32007, 504, 124},
		{&bouvet.ExitError{TimedOut: true, Code: -1}, []error{bouvet.ErrTimedOut}, "command timed out", "timed_out", -32007, 504, 124},
		{&bouvet.UnsupportedError{What: "stat"}, []error{bouvet.ErrUnsupported, vm.ErrUnsupported}, "the guest's agent does not support stat; use an image with a newer agent", "unsupported", -32601, 501, 125},
		{bouvet.Config{MemoryMiB: -1}.Validate(), []error{bouvet.ErrInvalidConfig, vm.ErrInvalidConfig}, "", "invalid_config", -32602, 400, 125},
		{context.Canceled, nil, "", "cancelled", -32008, 499, 130},
		{context.DeadlineExceeded, nil, "", "deadline", -32007, 504, 124},
		{errors.New("else"), nil, "else", "internal", -32603, 500, 125},
	} {
		t.Run(tt.name, func(t *testing.T) {
			wrapped := fmt.Errorf("cannot do it: %w", tt.err)
			for _, target := range tt.is {
				if !errors.Is(wrapped, target) {
					t.Errorf("%v does not match %v", wrapped, target)
				}
			}
			if tt.text != "" && tt.err.Error() != tt.text {
				t.Errorf("got text %q, want %q", tt.err, tt.text)
			}
			k := bouvet.Kind(wrapped)
			if k.Name != tt.name || k.RPCCode != tt.rpcCode || k.HTTPStatus != tt.http || k.ExitCode != tt.exit {
				t.Errorf("got %+v, want %s %d %d %d", k, tt.name, tt.rpcCode, tt.http, tt.exit)
			}
		})
	}
}

// The table itself: names and sentinels are unique, each sentinel has its own row.
func TestErrorTable(t *testing.T) {
	names, sentinels := map[string]bool{}, map[error]bool{}
	for _, k := range bouvet.ErrorKinds() {
		if names[k.Name] || sentinels[k.Err] {
			t.Errorf("%s comes twice", k.Name)
		}
		names[k.Name], sentinels[k.Err] = true, true
		if got := bouvet.Kind(k.Err).Name; got != k.Name {
			t.Errorf("sentinel of %s is of kind %s", k.Name, got)
		}
		if k.HTTPStatus < 400 || k.HTTPStatus > 599 || k.RPCCode >= 0 || k.ExitCode < 124 {
			t.Errorf("%+v is no error", k)
		}
	}
}

// T23: text of a guest stays on its line and does not reach a terminal raw.
func TestGuestTextInErrors(t *testing.T) {
	hostile := "a\x1b]0;title\x07\r\nb\u202e%n" + strings.Repeat("x", 1<<20)
	for _, err := range []error{
		&bouvet.RPCError{Code: -32603, Message: hostile},
		&bouvet.ExitError{Code: 1, Message: hostile},
		&bouvet.StartError{Message: hostile},
		&bouvet.JSONError{Err: errors.New(hostile)},
	} {
		got := err.Error()
		if strings.ContainsAny(got, "\x1b\r\n\x07\u202e") || len(got) > 5<<10 {
			t.Errorf("%T: %d bytes, %.60q", err, len(got), got)
		}
	}
}

func TestStartErrorMatches(t *testing.T) {
	for _, tt := range []struct {
		message string
		want    error
	}{
		{"fork/exec /no: no such file or directory", fs.ErrNotExist},
		{`exec: "no": executable file not found in $PATH`, fs.ErrNotExist},
		{"fork/exec /etc/passwd: permission denied", fs.ErrPermission},
		{"chdir /nope: no such file or directory", nil},
		{"fork/exec /bin/x: exec format error", nil},
	} {
		err := &bouvet.StartError{Message: tt.message}
		for _, target := range []error{fs.ErrNotExist, fs.ErrPermission} {
			if got, want := errors.Is(err, target), errors.Is(tt.want, target); got != want {
				t.Errorf("%q is %v: got %v, want %v", tt.message, target, got, want)
			}
		}
	}
}
