package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/bouvet-run/bouvet/image/internal/erofs"
)

// A stamp is what an image file looked like when it was last read whole and
// found right. As long as the file looks the same, it need not be read again:
// whoever writes to it changes its times.
type stamp struct {
	Size  int64  `json:"size"`
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Mtime int64  `json:"mtime_ns"`
	Ctime int64  `json:"ctime_ns"`
}

func stampOf(f *os.File) (stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return stamp{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.Mode().IsRegular() {
		return stamp{}, fmt.Errorf("%s is not a regular file", f.Name())
	}
	return stamp{Size: info.Size(), Dev: st.Dev, Inode: st.Ino, Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano()}, nil
}

func (s *Store) stampPath(digest string) string {
	return strings.TrimSuffix(s.blobPath(digest), ".erofs") + ".json"
}

func (s *Store) writeStamp(digest string, st stamp) error {
	data, err := json.Marshal(st)
	if err != nil {
		return err
	}
	return s.writeFile(s.stampPath(digest), append(data, '\n'))
}

// corrupt wraps ErrCorrupt with the remedy.
func corrupt(digest, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s; import or build it again, which replaces the file", ErrCorrupt, digest, fmt.Sprintf(format, args...))
}

// check returns an error wrapping ErrCorrupt if the file open as f is not the
// image with this digest and size. It always looks at the length and the
// superblock; it reads the file whole if it has changed since that was last
// done, or if whole is set.
func (s *Store) check(ctx context.Context, f *os.File, digest string, size int64, whole bool) error {
	now, err := stampOf(f)
	if err != nil {
		return fmt.Errorf("cannot check image: %w", err)
	}
	if now.Size != size {
		return corrupt(digest, "its file has %d bytes instead of %d", now.Size, size)
	}
	if err := erofs.Check(f, size); err != nil {
		return corrupt(digest, "%v", err)
	}
	var last stamp
	// A record that cannot be read is one that does not match.
	if err := readJSON(s.stampPath(digest), &last); err == nil && last == now && !whole {
		return nil
	}
	got, err := hashFile(ctx, f, nil)
	if err != nil {
		return fmt.Errorf("cannot check image: %w", err)
	}
	if got != digest {
		return corrupt(digest, "its content has the digest %s", got)
	}
	return s.writeStamp(digest, now)
}

// hashFile returns the digest of the file's content.
func hashFile(ctx context.Context, f io.ReaderAt, p Progress) (string, error) {
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for off := int64(0); ; {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		n, err := f.ReadAt(buf, off)
		h.Write(buf[:n])
		off += int64(n)
		if p != nil {
			p(Event{Stage: "computing the digest", Done: off, Unit: "bytes"})
		}
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err != nil {
			return "", err
		}
	}
}

// Verify reads the whole image and compares its digest. It returns an error
// wrapping ErrCorrupt if a single bit has changed.
func (s *Store) Verify(ctx context.Context, nameOrDigest string) error {
	info, err := s.Inspect(ctx, nameOrDigest)
	if err != nil {
		return err
	}
	f, err := openFile(info.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return corrupt(info.Digest, "its file is missing")
	}
	if err != nil {
		return fmt.Errorf("cannot check image: %w", err)
	}
	defer func() { _ = f.Close() }()
	return s.check(ctx, f, info.Digest, info.Size, true)
}
