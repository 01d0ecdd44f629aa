package bouvet

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"slices"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/wire"
)

// infoCache remembers the agent's Info, which does not change in its life.
type infoCache struct {
	lock chan struct{} // a mutex that a context can end the wait for
	info *Info         // guarded by lock
}

// Info describes the agent. It is asked for once. An agent that does not know
// the question has an empty Info, and one whose capabilities are of another
// version of the protocol an Info without any: no extension may be used with them.
func (c *AgentClient) Info(ctx context.Context) (Info, error) {
	select {
	case c.info.lock <- struct{}{}:
		defer func() { <-c.info.lock }()
	case <-ctx.Done():
		return Info{}, fmt.Errorf("cannot ask the agent about itself: %w", context.Cause(ctx))
	}
	if c.info.info != nil {
		return *c.info.info, nil
	}
	var i Info
	if !c.opts.ExecOnly {
		err := c.call(ctx, call{method: wire.MethodInfo, idempotent: true, extension: true}, &i)
		if err != nil && !errors.Is(err, ErrUnsupported) {
			return Info{}, err
		}
		if i.Protocol != wire.ProtocolVersion {
			i.Capabilities = nil // they mean something else (threat T24)
		}
	}
	c.info.info = &i
	return i, nil
}

// require returns an UnsupportedError that names what, if the agent lacks the
// capability.
func (c *AgentClient) require(ctx context.Context, capability, what string) error {
	info, err := c.Info(ctx)
	if err != nil {
		return err
	}
	if !info.Has(capability) {
		return &UnsupportedError{What: what}
	}
	return nil
}

// Stat describes a file; a symbolic link is described itself.
func (c *AgentClient) Stat(ctx context.Context, name string) (*FileInfo, error) {
	var r FileInfo
	if err := c.call(ctx, call{method: wire.MethodStat, params: wire.PathParams{Path: name}, idempotent: true, extension: true}, &r); err != nil {
		return nil, err
	}
	if err := checkSize(r.Size); err != nil {
		return nil, err
	}
	if r.Name != "/" {
		if err := checkName(r.Name); err != nil {
			return nil, err
		}
	}
	if r.Mode > 0o7777 || !slices.Contains([]string{wire.TypeFile, wire.TypeDir, wire.TypeSymlink, wire.TypeOther}, r.Type) {
		return nil, &JSONError{fmt.Errorf("stat returned mode %o and type %.20q", r.Mode, r.Type)}
	}
	return &r, nil
}

// FileOptions are the options of calls that make files; nil means none.
type FileOptions struct {
	// Mode holds the permission, setuid, setgid and sticky bits; 0 leaves them to
	// the agent: those of the file that is replaced, or 0644 (0755 for a directory).
	Mode fs.FileMode
	// User owns the file and the directories made for it: a name, a number or
	// "uid:gid". The agent's own user when empty.
	User string
}

// unixMode returns the mode as the protocol has it, nil for none.
func (o *FileOptions) unixMode() *uint32 {
	if o == nil || o.Mode == 0 {
		return nil
	}
	m := uint32(o.Mode.Perm())
	for bit, unix := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if o.Mode&bit != 0 {
			m |= unix
		}
	}
	return &m
}

func (o *FileOptions) user() string {
	if o == nil {
		return ""
	}
	return o.User
}

// MakeDir makes a directory and its missing parents. It reports whether the
// directory was made, and not there before.
func (c *AgentClient) MakeDir(ctx context.Context, name string, opts *FileOptions) (bool, error) {
	var r wire.MakeDirResult
	p := wire.MakeDirParams{Path: name, Mode: opts.unixMode(), User: opts.user()}
	err := c.call(ctx, call{method: wire.MethodMakeDir, params: p, extension: true}, &r)
	return r.Created, err
}

// Move renames a file or directory, replacing the target as rename(2) does.
func (c *AgentClient) Move(ctx context.Context, from, to string) error {
	return c.call(ctx, call{method: wire.MethodMove, params: wire.MoveParams{From: from, To: to}, extension: true}, nil)
}

// Remove removes a file, or a directory with all that is in it.
func (c *AgentClient) Remove(ctx context.Context, name string) error {
	return c.call(ctx, call{method: wire.MethodRemove, params: wire.PathParams{Path: name}, extension: true}, nil)
}

// Processes lists the processes that the agent started and still remembers, in
// the order of their start.
func (c *AgentClient) Processes(ctx context.Context) ([]Process, error) {
	var r wire.ProcessesResult
	if err := c.call(ctx, call{method: wire.MethodProcesses, bound: maxProcessesReply, idempotent: true, extension: true}, &r); err != nil {
		return nil, err
	}
	for _, p := range r.Processes {
		if p.PID < 0 {
			return nil, &JSONError{fmt.Errorf("process has pid %d", p.PID)}
		}
		if err := checkExitCode(p.ExitCode); err != nil {
			return nil, err
		}
	}
	return r.Processes, nil
}

// Signal sends a signal to a process that the agent started, named by its
// ID or its PID, whichever is set in p.
func (c *AgentClient) Signal(ctx context.Context, p wire.SignalParams) error {
	return c.call(ctx, call{method: wire.MethodSignal, params: p, extension: true}, nil)
}

// ReadBytes returns the content of a file of at most wire.MaxContent bytes,
// whatever it holds.
func (c *AgentClient) ReadBytes(ctx context.Context, name string) ([]byte, error) {
	b, _, err := c.readBytes(ctx, wire.ReadFileParams{Path: name, Encoding: wire.EncodingBase64}, wire.MaxContent)
	return b, err
}

// ReadFileRange returns at most length bytes of a file from offset on, and the
// size of the whole file. length is 1 to wire.MaxContent.
func (c *AgentClient) ReadFileRange(ctx context.Context, name string, offset, length int64) ([]byte, int64, error) {
	if offset < 0 || length < 1 || length > wire.MaxContent {
		return nil, 0, fmt.Errorf("cannot read %d bytes at %d: a length of 1 to %d is allowed, and an offset from 0", length, offset, wire.MaxContent)
	}
	p := wire.ReadFileParams{Path: name, Encoding: wire.EncodingBase64, Offset: uint64(offset), Length: uint64(length)}
	b, size, err := c.readBytes(ctx, p, int(length))
	if err != nil {
		return nil, 0, err
	}
	if size == nil {
		return nil, 0, &UnsupportedError{What: "offset and length of read_file"}
	}
	if err := checkSize(*size); err != nil {
		return nil, 0, err
	}
	return b, int64(*size), nil //nolint:gosec // checked.
}

func (c *AgentClient) readBytes(ctx context.Context, p wire.ReadFileParams, limit int) ([]byte, *uint64, error) {
	c.log.LogAttrs(ctx, slog.LevelDebug, "reading file", guestAttr("path", p.Path))
	// An older agent answers with text, which takes up to six bytes for one.
	k := call{method: wire.MethodReadFile, params: p, bound: min(6*limit+maxSmallReply, wire.MaxRPCLine), idempotent: true}
	var r wire.ReadFileResult
	if err := c.call(ctx, k, &r); err != nil {
		return nil, nil, err
	}
	b := []byte(r.Content)
	switch r.Encoding {
	case "":
	case wire.EncodingBase64:
		var err error
		if b, err = base64.StdEncoding.DecodeString(r.Content); err != nil {
			return nil, nil, &JSONError{fmt.Errorf("content of read_file: %w", err)}
		}
	default:
		return nil, nil, &JSONError{fmt.Errorf("content of read_file has encoding %.20q", r.Encoding)}
	}
	if len(b) > limit && (r.Encoding != "" || p.Length == 0) {
		return nil, nil, &JSONError{fmt.Errorf("read_file returned %d bytes, at most %d were asked for", len(b), limit)}
	}
	return b, r.Size, nil
}

// WriteBytes replaces the content of a file, making it and its parents if they
// are missing. Content of at most wire.MaxContent bytes may hold anything.
func (c *AgentClient) WriteBytes(ctx context.Context, name string, content []byte, opts *FileOptions) error {
	p := wire.WriteFileParams{Path: name, Mode: opts.unixMode(), User: opts.user()}
	if p.Mode == nil && p.User == "" && utf8.Valid(content) {
		return c.WriteFile(ctx, name, string(content))
	}
	// An older agent would write the base64 text itself.
	if err := c.require(ctx, wire.CapFiles, "binary content, mode and user of write_file"); err != nil {
		return err
	}
	c.log.LogAttrs(ctx, slog.LevelDebug, "writing file", guestAttr("path", path.Clean(name)), slog.Int("content_length", len(content)))
	p.Content, p.Encoding = base64.StdEncoding.EncodeToString(content), wire.EncodingBase64
	return c.writeFile(ctx, p)
}
