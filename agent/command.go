package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// interpreters is the language table of seed 003: the program and the option
// that takes code.
var interpreters = map[string][2]string{
	"python": {"python3", "-c"}, "python3": {"python3", "-c"},
	"node": {"node", "-e"}, "javascript": {"node", "-e"}, "js": {"node", "-e"},
	"bash": {"bash", "-c"},
	"sh":   {"sh", "-c"},
}

// maxShownLang bounds what a result repeats of an unknown language, in bytes.
const maxShownLang = 256

func callExec(ctx context.Context, s *Server, params json.RawMessage) (any, error) {
	var p struct {
		Cmd *string `json:"cmd"`
		wire.ExecOptions
	}
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	if p.Cmd == nil {
		return nil, missing("cmd")
	}
	return s.capture(ctx, []string{"sh", "-c", *p.Cmd}, p.ExecOptions)
}

func callExecCode(ctx context.Context, s *Server, params json.RawMessage) (any, error) {
	var p struct {
		Lang *string `json:"lang"`
		Code *string `json:"code"`
		wire.ExecOptions
	}
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	switch {
	case p.Lang == nil:
		return nil, missing("lang")
	case p.Code == nil:
		return nil, missing("code")
	}
	in, ok := interpreters[strings.ToLower(*p.Lang)]
	if !ok {
		return wire.ExecResult{ExitCode: -1, Stderr: "unsupported language: " + shorten(*p.Lang, maxShownLang)}, nil
	}
	return s.capture(ctx, []string{in[0], in[1], *p.Code}, p.ExecOptions)
}

// capture runs a command to its end and returns the start of its output. When
// ctx ends the command and all it started are killed.
func (s *Server) capture(ctx context.Context, args []string, o wire.ExecOptions) (wire.ExecResult, error) {
	if err := checkCommand(args, o); err != nil {
		return wire.ExecResult{}, err
	}
	p, err := s.proc.Start(proc.Spec{
		Args: args, Dir: o.Dir, Env: o.Env, User: o.User,
		Timeout: time.Duration(min(o.TimeoutMS, maxTimeoutMS)) * time.Millisecond,
	})
	if err != nil {
		return wire.ExecResult{ExitCode: -1, Stderr: fmt.Sprintf("failed to execute %s: %v", args[0], err)}, nil
	}
	stop := context.AfterFunc(ctx, func() { p.Kill() })
	defer stop()
	var stdout, stderr outputStart
	var copies sync.WaitGroup
	copies.Go(func() { stdout.readFrom(p.Stdout()) })
	copies.Go(func() { stderr.readFrom(p.Stderr()) })
	copies.Wait()
	<-p.Wait()
	status := p.Status()
	return wire.ExecResult{
		ExitCode: int32(status.ExitCode), //nolint:gosec // -1 to 255.
		Stdout:   stdout.String(), Stderr: stderr.String(),
		TimedOut: status.TimedOut,
	}, nil
}

// maxTimeoutMS is the longest time that a time.Duration can hold.
const maxTimeoutMS = uint64(1<<63-1) / uint64(time.Millisecond)

func checkCommand(args []string, o wire.ExecOptions) error {
	for _, list := range [][]string{args, o.Env, {o.Dir, o.User}} {
		for _, a := range list {
			if strings.IndexByte(a, 0) >= 0 {
				return invalid("a NUL byte is not allowed in a command, env, dir or user")
			}
		}
	}
	for _, kv := range o.Env {
		if strings.IndexByte(kv, '=') < 1 {
			return invalid("env holds KEY=value pairs, not %q", shorten(kv, maxShownMethod))
		}
	}
	return nil
}
