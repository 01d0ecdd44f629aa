package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

func callWriteFile(_ context.Context, _ *Server, params json.RawMessage) (any, error) {
	var p struct {
		Path     string  `json:"path"`
		Content  *string `json:"content"` // absent is not empty
		Encoding string  `json:"encoding"`
		Offset   *uint64 `json:"offset"`
		Mode     *uint32 `json:"mode"`
		User     string  `json:"user"`
	}
	if err := decodeParams(params, &p); err != nil {
		return nil, err
	}
	o, err := target(p.Path, p.Mode, p.User)
	if err != nil {
		return nil, err
	}
	var content io.Reader
	switch {
	case p.Content == nil:
		return nil, missing("content")
	case p.Encoding == "":
		content = strings.NewReader(*p.Content)
	case p.Encoding == wire.EncodingBase64:
		raw, err := base64.StdEncoding.DecodeString(*p.Content)
		if err != nil {
			return nil, invalid("content is not base64: %v", err)
		}
		*p.Content = ""
		content = strings.NewReader(string(raw))
	default:
		return nil, invalid("unknown encoding %q", shorten(p.Encoding, maxShownMethod))
	}
	if p.Offset != nil && *p.Offset > math.MaxInt64 {
		return nil, invalid("offset is at most 2^63-1")
	}
	if parent := filepath.Dir(p.Path); p.Offset == nil {
		if _, err := makeDirs(parent, o); err != nil {
			return nil, failed("create directories for", p.Path, err)
		}
	}
	if err := writeFile(p.Path, content, p.Offset, p.Mode, o); err != nil {
		return nil, failed("write", p.Path, err)
	}
	return wire.WriteFileResult{Success: true}, nil
}

// writeFile puts content into a file in place, as the seed's agent does: an
// existing file keeps its inode and mode, and links are followed.
func writeFile(path string, content io.Reader, offset *uint64, mode *uint32, o *owner) error {
	flags := os.O_WRONLY | unix.O_NONBLOCK | unix.O_NOCTTY
	if offset == nil {
		flags |= os.O_CREATE | os.O_TRUNC // not truncate(2), which files of /proc refuse
	}
	if info, err := os.Stat(path); err == nil {
		if err := regular(info); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, flags, 0o666) //nolint:gosec // less the umask, as everywhere.
	if err != nil {
		return err
	}
	err = fill(f, content, offset)
	if err == nil {
		err = applyTo(f, mode, o)
	}
	return errors.Join(err, f.Close())
}

func fill(f *os.File, content io.Reader, offset *uint64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := regular(info); err != nil {
		return err
	}
	if offset != nil {
		if _, err := f.Seek(int64(*offset), io.SeekStart); err != nil { //nolint:gosec // checked.
			return err
		}
	}
	_, err = io.Copy(f, content)
	return err
}

// applyTo sets owner and mode, in this order: a change of owner clears the setuid
// bit.
func applyTo(f *os.File, mode *uint32, o *owner) error {
	fd := int(f.Fd())
	if o != nil {
		if err := unix.Fchown(fd, o.uid, o.gid); err != nil {
			return fmt.Errorf("cannot set owner: %w", err)
		}
	}
	if mode != nil {
		if err := unix.Fchmod(fd, *mode); err != nil {
			return fmt.Errorf("cannot set mode: %w", err)
		}
	}
	return nil
}
