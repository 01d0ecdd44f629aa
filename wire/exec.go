package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Types of frames of the exec protocol. Those marked as extensions are sent to a
// host only when its request asked for them; a host may send any of the input
// types, because an agent that does not know one ignores it.
const (
	FrameTypeStdin  = "stdin"
	FrameTypeResize = "resize"
	FrameTypeEOF    = "eof"
	FrameTypeSignal = "signal" // extension

	FrameTypeStdout  = "stdout"
	FrameTypeStderr  = "stderr"
	FrameTypeExit    = "exit"
	FrameTypeStarted = "started" // extension, asked for by ExecRequest.Started
)

// FramingBinary is the value of ExecRequest.Framing that turns both directions
// into binary frames after the request line.
const FramingBinary = "binary"

// Data is a frame's bytes: base64 in JSON. A string that is not base64 stands
// for its own bytes (checklist J7, L19). Read it with Decode.
type Data []byte

// ExecRequest is the first line of a connection to the exec port. Command,
// Dir, Env, EntropySeed and TTY are the seed's; the rest are extensions.
type ExecRequest struct {
	// Command is the program and its arguments; no shell is involved.
	Command []string `json:"command"`
	Dir     string   `json:"dir,omitempty"`
	// Env holds KEY=value pairs, added to the agent's own environment.
	Env []string `json:"env,omitempty"`
	// EntropySeed is credited to the guest kernel's random pool.
	EntropySeed []byte `json:"entropy_seed,omitempty"`
	// TTY gives the command a terminal; its output arrives as stdout.
	TTY bool `json:"tty,omitempty"`

	// User runs the command as that user: a name or a number, or "uid:gid".
	User string `json:"user,omitempty"`
	// TimeoutMS ends the command's processes after that many milliseconds.
	TimeoutMS uint64 `json:"timeout_ms,omitempty"`
	// NoStdin gives the command an empty standard input at once.
	NoStdin bool `json:"no_stdin,omitempty"`
	// Cols and Rows are the terminal's first size; 80x24 when 0.
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	// Started asks for a started frame before any output and for the signal,
	// timed_out and oom_killed fields of the exit frame.
	Started bool `json:"started,omitempty"`
	// Framing "binary" asks for binary frames.
	Framing string `json:"framing,omitempty"`
	// Detach keeps the process and a bounded tail of its output when the
	// connection ends. ID names it, 1 to 64 characters of [A-Za-z0-9._-]; when
	// empty the agent chooses one, told in the started frame.
	Detach bool   `json:"detach,omitempty"`
	ID     string `json:"id,omitempty"`
	// Attach joins the detached process of that ID instead of starting one;
	// Command must be empty.
	Attach string `json:"attach,omitempty"`
	// ReplayFrom asks an attach for the kept output from that offset on, in bytes
	// of stdout and stderr together since the start; absent means only what comes.
	ReplayFrom *uint64 `json:"replay_from,omitempty"`
}

// InputFrame goes from the host to the agent after the request.
type InputFrame struct {
	Type string `json:"type"`
	Data Data   `json:"data,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	// Signal is a signal number, sent to the process group (extension).
	Signal int `json:"signal,omitempty"`
}

// StreamFrame goes from the agent to the host. Exactly one frame of type exit
// ends a session.
type StreamFrame struct {
	Type string `json:"type"`
	Data Data   `json:"data,omitempty"`
	// ExitCode and Error belong to exit. A command that a signal ended, or that
	// could not start, has -1 or 1 and says why in Error.
	ExitCode int32  `json:"exit_code,omitempty"`
	Error    string `json:"error,omitempty"`

	// Signal, TimedOut and OOMKilled belong to exit, when Started was asked for: the
	// signal that ended the command, and whether that was for its timeout, or because
	// the guest's memory ran out.
	Signal    int  `json:"signal,omitempty"`
	TimedOut  bool `json:"timed_out,omitempty"`
	OOMKilled bool `json:"oom_killed,omitempty"`
	// PID and ID belong to started. Offset is where the output that follows
	// begins, in bytes since the process started.
	PID    int    `json:"pid,omitempty"`
	ID     string `json:"id,omitempty"`
	Offset uint64 `json:"offset,omitempty"`
}

// exitFrame is the exit frame as we write it: the seed's example spells out the
// zero values, and both decoders accept them (checklist L17).
type exitFrame struct {
	Type     string `json:"type"`
	ExitCode int32  `json:"exit_code"`
	Error    string `json:"error"`
	Signal   int    `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	OOM      bool   `json:"oom_killed,omitempty"`
}

// AppendDataFrame appends one line: a frame of type typ (stdin, stdout or stderr)
// that carries data. It is AppendLine of such a frame without its cost.
func AppendDataFrame(dst []byte, typ string, data []byte) []byte {
	dst = append(dst, `{"type":"`...)
	dst = append(dst, typ...)
	dst = append(dst, `","data":"`...)
	dst = base64.StdEncoding.AppendEncode(dst, data)
	return append(dst, "\"}\n"...)
}

// MarshalJSON implements json.Marshaler.
func (f StreamFrame) MarshalJSON() ([]byte, error) {
	if f.Type == FrameTypeExit {
		return json.Marshal(exitFrame{f.Type, f.ExitCode, f.Error, f.Signal, f.TimedOut, f.OOMKilled})
	}
	type plain StreamFrame
	return json.Marshal(plain(f))
}

// LegacyResponse is the untyped reply of an agent that does not stream: the
// whole outcome in one line (seed 001, "ExecResponse").
type LegacyResponse struct {
	ExitCode int32  `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	Error    string `json:"error"`
}

// The beginnings of the lines that plainFrame reads.
var (
	plainStdin  = AppendDataFrame(nil, FrameTypeStdin, nil)
	plainStdout = AppendDataFrame(nil, FrameTypeStdout, nil)
	plainStderr = AppendDataFrame(nil, FrameTypeStderr, nil)
)

// plainFrame reads the lines that carry bulk data, in the form that AppendDataFrame
// and encoding/json give them, without looking at each byte more than once. What
// it does not know goes to Decode, which reads the same from all that it does.
func plainFrame(line []byte) (typ string, data []byte, ok bool) {
	const tail = `"}`
	for _, form := range []struct {
		typ   string
		whole []byte
	}{{FrameTypeStdout, plainStdout}, {FrameTypeStderr, plainStderr}, {FrameTypeStdin, plainStdin}} {
		rest, found := bytes.CutPrefix(line, form.whole[:len(form.whole)-len(tail+"\n")])
		if !found {
			continue
		}
		if rest, found = bytes.CutSuffix(rest, []byte(tail)); !found {
			return "", nil, false
		}
		if bytes.IndexByte(rest, '\r') >= 0 || bytes.IndexByte(rest, '\n') >= 0 {
			return "", nil, false // the decoder would skip them
		}
		data, err := base64.StdEncoding.AppendDecode(nil, rest)
		return form.typ, data, err == nil
	}
	return "", nil, false
}

// DecodeStream reads one line from an agent: a frame, or a legacy response when
// the type is missing (checklist J8). The type is trimmed and lower-cased, and may
// be one that this package does not know. A line with neither a type nor an exit
// code is an error: it would read as a success.
func DecodeStream(line []byte) (StreamFrame, *LegacyResponse, error) {
	if typ, data, ok := plainFrame(line); ok && typ != FrameTypeStdin {
		return StreamFrame{Type: typ, Data: data}, nil, nil
	}
	var f StreamFrame
	if err := Decode(line, &f); err != nil {
		return StreamFrame{}, nil, err
	}
	f.Type = strings.ToLower(strings.TrimSpace(f.Type))
	if f.Type != "" {
		return f, nil, nil
	}
	var l struct {
		LegacyResponse
		Given *int32 `json:"exit_code"` // tells an absent exit code from 0
	}
	if err := decodeValid(line, &l); err != nil {
		return StreamFrame{}, nil, err
	}
	if l.Given == nil {
		return StreamFrame{}, nil, errors.New("frame has neither a type nor an exit code")
	}
	l.ExitCode = *l.Given
	return StreamFrame{}, &l.LegacyResponse, nil
}

// DecodeInput reads one input line from a host.
func DecodeInput(line []byte) (InputFrame, error) {
	if typ, data, ok := plainFrame(line); ok && typ == FrameTypeStdin {
		return InputFrame{Type: typ, Data: data}, nil
	}
	var f InputFrame
	if err := Decode(line, &f); err != nil {
		return InputFrame{}, err
	}
	f.Type = strings.ToLower(strings.TrimSpace(f.Type))
	return f, nil
}

// DecodeExecRequest reads the first line of an exec connection. The texts of its
// errors are those hosts know (checklist 2.10).
func DecodeExecRequest(line []byte) (ExecRequest, error) {
	var r ExecRequest
	if err := Decode(line, &r); err != nil {
		return ExecRequest{}, err
	}
	if err := r.check(); err != nil {
		return ExecRequest{}, err
	}
	return r, nil
}

func (r *ExecRequest) check() error {
	switch {
	case r.Framing != "" && r.Framing != FramingBinary:
		return fmt.Errorf("framing %.20q is not known", r.Framing)
	case r.ID != "" && !ValidID(r.ID), r.Attach != "" && !ValidID(r.Attach):
		return fmt.Errorf("an id has 1 to %d characters of A-Z a-z 0-9 . _ -", MaxID)
	case r.Attach != "" && len(r.Command) > 0:
		return errors.New("attach takes no command")
	case r.Attach != "":
		return nil
	case len(r.Command) == 0:
		return errors.New("missing command")
	case strings.TrimSpace(r.Command[0]) == "":
		return errors.New("missing command executable")
	}
	for _, list := range [][]string{r.Command, r.Env, {r.Dir, r.User}} {
		for _, s := range list {
			if strings.IndexByte(s, 0) >= 0 {
				return errors.New("a NUL byte is not allowed in command, env, dir or user")
			}
		}
	}
	return nil
}

// ValidID reports whether id can name a detached process: 1 to MaxID characters of
// A-Z, a-z, 0-9, ".", "_" and "-".
func ValidID(id string) bool {
	for _, c := range []byte(id) {
		if !isDigit(c) && (c|0x20 < 'a' || c|0x20 > 'z') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return id != "" && len(id) <= MaxID
}
