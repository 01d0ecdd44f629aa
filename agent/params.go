package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/wire"
)

// Bounds of what an error message repeats of its request, in bytes.
const (
	maxShownMethod = 256
	maxShownPath   = 4096
)

// invalid is the error for parameters that cannot be served as they are.
func invalid(format string, args ...any) error {
	return &wire.RPCError{Code: wire.CodeInvalidParams, Message: "invalid params: " + fmt.Sprintf(format, args...)}
}

// decodeParams reads params into v.
func decodeParams(params json.RawMessage, v any) error {
	if err := wire.DecodeParams(params, v); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// missing is the error for a parameter that must be there.
func missing(name string) error { return invalid("missing field %q", name) }

// decodePath reads the parameters of methods that take a path alone.
func decodePath(params json.RawMessage) (string, error) {
	var p wire.PathParams
	if err := decodeParams(params, &p); err != nil {
		return "", err
	}
	return p.Path, checkPath("path", p.Path)
}

func checkPath(name, path string) error {
	switch {
	case path == "":
		return missing(name)
	case strings.IndexByte(path, 0) >= 0:
		return invalid("%s has a NUL byte", name)
	}
	return nil
}

func checkMode(mode *uint32) error {
	if mode != nil && *mode > 0o7777 {
		return invalid("mode %#o is not within 0..07777", *mode)
	}
	return nil
}

// shorten cuts s to at most n bytes, at a character boundary.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "..."
}

// failed is the error of an operation on a path, in the words of seed 002.
func failed(doing, path string, err error) error {
	return fmt.Errorf("failed to %s '%s': %w", doing, shorten(path, maxShownPath), bare(err))
}

// bare takes the operation and the path off an error that will name them itself.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e
	}
	return err
}
