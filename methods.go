package bouvet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/wire"
)

// Messages of the protocol that callers see.
type (
	// ExecResult is the outcome of Exec and ExecCode.
	ExecResult = wire.ExecResult
	// FileEntry is one name of a directory.
	FileEntry = wire.FileEntry
	// FileInfo describes one file.
	FileInfo = wire.FileInfo
	// Info describes the agent.
	Info = wire.Info
	// Process describes a process that the agent started.
	Process = wire.Process
	// WatchEvent is one change below a watched directory.
	WatchEvent = wire.WatchEvent
)

// ExecOptions are the options of Exec and ExecCode; nil means none. Dir, Env and
// User need an agent with the capability "exec.extended".
type ExecOptions struct {
	Dir string
	// Env holds KEY=value pairs, added to the agent's own environment.
	Env []string
	// User is a name, a number or "uid:gid"; the agent's own user when empty.
	User string
	// Timeout ends the command and all that it started; 0 leaves it to the RPC
	// timeout, which ends the call and thereby the command.
	Timeout time.Duration
}

// timeoutGrace is how much later than the guest the host gives a command up.
const timeoutGrace = 2 * time.Second

// Exec runs cmd with "sh -c" and returns when it has ended. Each output stream is
// kept up to wire.MaxOutput bytes. A command that fails is a result, not an
// error; one whose Timeout strikes is a TimeoutError with what it had written.
func (c *AgentClient) Exec(ctx context.Context, cmd string, opts *ExecOptions) (*ExecResult, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "executing command", guestAttr("command", cmd))
	p := wire.ExecParams{Cmd: cmd}
	return c.exec(ctx, wire.MethodExec, opts, &p.ExecOptions, &p)
}

// ExecCode runs code with the interpreter of lang: python, node, bash or sh and
// their other names. A language that the guest does not know is a result with
// exit code -1. Otherwise as Exec.
func (c *AgentClient) ExecCode(ctx context.Context, lang, code string, opts *ExecOptions) (*ExecResult, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "executing code", guestAttr("language", lang), slog.Int("code_length", len(code)))
	p := wire.ExecCodeParams{Lang: lang, Code: code}
	return c.exec(ctx, wire.MethodExecCode, opts, &p.ExecOptions, &p)
}

func (c *AgentClient) exec(ctx context.Context, method string, opts *ExecOptions, to *wire.ExecOptions, params any) (*ExecResult, error) {
	k := call{method: method, params: params, bound: maxExecReply}
	var limit time.Duration
	if opts != nil {
		limit = opts.Timeout
		if opts.Dir != "" || len(opts.Env) > 0 || opts.User != "" {
			// An older agent would ignore them, and run something else than asked.
			if err := c.require(ctx, wire.CapExecExtended, "dir, env and user of "+method); err != nil {
				return nil, err
			}
		}
		*to = wire.ExecOptions{Dir: opts.Dir, Env: opts.Env, User: opts.User, TimeoutMS: millis(limit)}
		if limit > 0 {
			k.timeout = limit + timeoutGrace
		}
	}
	var r ExecResult
	err := c.call(ctx, k, &r)
	var rpc *RPCError
	if limit > 0 && errors.As(err, &rpc) && rpc.Timeout() {
		return nil, &TimeoutError{Timeout: limit}
	}
	if err != nil {
		return nil, err
	}
	if err := checkExitCode(r.ExitCode); err != nil {
		return nil, err
	}
	if r.TimedOut {
		return nil, &TimeoutError{Timeout: limit, Result: &r}
	}
	return &r, nil
}

// millis rounds up, so that a timeout is never 0, which means none.
func millis(d time.Duration) uint64 {
	if d <= 0 {
		return 0
	}
	return uint64((d + time.Millisecond - 1) / time.Millisecond)
}

// checkExitCode refuses what no process can end with (threat T21).
func checkExitCode(code int32) error {
	if code < -1 || code > math.MaxUint8 {
		return &JSONError{fmt.Errorf("exit code %d is outside -1..255", code)}
	}
	return nil
}

// ReadFile returns the content of a text file of at most wire.MaxContent bytes.
func (c *AgentClient) ReadFile(ctx context.Context, path string) (string, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "reading file", guestAttr("path", path))
	var r wire.ReadFileResult
	err := c.call(ctx, call{method: wire.MethodReadFile, params: wire.ReadFileParams{Path: path}, bound: wire.MaxRPCLine}, &r)
	if err != nil {
		return "", err
	}
	if len(r.Content) > wire.MaxContent {
		return "", &JSONError{fmt.Errorf("read_file returned %d bytes, at most %d are allowed", len(r.Content), wire.MaxContent)}
	}
	return r.Content, nil
}

// WriteFile replaces the content of a file, making it and its parents if they
// are missing. Content is UTF-8 text of at most wire.MaxContent bytes; WriteBytes
// and Upload carry anything.
func (c *AgentClient) WriteFile(ctx context.Context, path, content string) error {
	c.log.LogAttrs(ctx, slog.LevelDebug, "writing file", guestAttr("path", path), slog.Int("content_length", len(content)))
	if !utf8.ValidString(content) {
		return &JSONError{errors.New("content of write_file is not valid UTF-8; use WriteBytes or Upload")}
	}
	return c.writeFile(ctx, wire.WriteFileParams{Path: path, Content: content})
}

func (c *AgentClient) writeFile(ctx context.Context, p wire.WriteFileParams) error {
	var r wire.WriteFileResult
	if err := c.call(ctx, call{method: wire.MethodWriteFile, params: p}, &r); err != nil {
		return err
	}
	if !r.Success {
		return &JSONError{errors.New("write_file was answered without success")}
	}
	return nil
}

// ListDir returns the entries of a directory, sorted by name. A directory may
// have wire.MaxElements entries.
func (c *AgentClient) ListDir(ctx context.Context, path string) ([]FileEntry, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "listing directory", guestAttr("path", path))
	var r wire.ListDirResult
	if err := c.call(ctx, call{method: wire.MethodListDir, params: wire.PathParams{Path: path}, bound: maxListReply}, &r); err != nil {
		return nil, err
	}
	for _, e := range r.Entries {
		if err := checkName(e.Name); err != nil {
			return nil, err
		}
		if err := checkSize(e.Size); err != nil {
			return nil, err
		}
	}
	return r.Entries, nil
}

// checkName refuses what is no name of a directory entry: it could lead a caller
// that joins paths out of the directory (threats T21, T22).
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return &JSONError{fmt.Errorf("%.300q is not a file name", name)}
	}
	return nil
}

// checkSize refuses sizes that would be negative as int64.
func checkSize(size uint64) error {
	if size > math.MaxInt64 {
		return &JSONError{fmt.Errorf("size of %d bytes is impossible", size)}
	}
	return nil
}
