package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// An interpreter runs code that is given as an argument.
type interpreter struct {
	program, option string
	// loader is code that runs the code on standard input, which is empty then, as
	// it is for code that fits an argument.
	loader string
}

const shLoader = `eval "$(cat)"`

var (
	python = interpreter{"python3", "-c", `exec(compile(__import__("sys").stdin.buffer.read(), "<string>", "exec"))`}
	node   = interpreter{"node", "-e", `(0, eval)(require("fs").readFileSync(0, "utf8"))`}
	bash   = interpreter{"bash", "-c", shLoader}
	sh     = interpreter{"sh", "-c", shLoader}
)

// interpreters is the language table of seed 003 (checklist D4).
var interpreters = map[string]interpreter{
	"python": python, "python3": python, "node": node, "javascript": node, "js": node, "bash": bash, "sh": sh,
}

// maxArgument is the length of the longest argument that Linux takes, in bytes
// (MAX_ARG_STRLEN, less its NUL).
const maxArgument = 128<<10 - 1

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
	return s.interpret(ctx, sh, *p.Cmd, p.ExecOptions)
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
	return s.interpret(ctx, in, *p.Code, p.ExecOptions)
}

// interpret runs code as an argument of its interpreter, as the seed's agent
// does, and code that is too long for one through the loader.
func (s *Server) interpret(ctx context.Context, in interpreter, code string, o wire.ExecOptions) (wire.ExecResult, error) {
	if len(code) <= maxArgument {
		return s.capture(ctx, []string{in.program, in.option, code}, "", o)
	}
	return s.capture(ctx, []string{in.program, in.option, in.loader}, code, o)
}

// capture runs a command to its end and returns the start of its output. It has
// input, if any, and then nothing on standard input. When ctx ends the command
// and all it started are killed.
func (s *Server) capture(ctx context.Context, args []string, input string, o wire.ExecOptions) (wire.ExecResult, error) {
	if err := checkCommand(append(args, input), o); err != nil {
		return wire.ExecResult{}, err
	}
	p, err := s.proc.Start(proc.Spec{
		Args: args, Dir: o.Dir, Env: o.Env, User: o.User, Stdin: input != "",
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
	if input != "" {
		copies.Go(func() {
			_, _ = io.WriteString(p.Stdin(), input) // it may end before it has read all
			_ = p.Stdin().Close()
		})
	}
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
