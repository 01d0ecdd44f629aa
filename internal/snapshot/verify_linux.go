package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm"
)

// stampName holds the stamps of files that were found to be right.
const stampName = "verified.json"

// block is what digest looks at at a time, in bytes.
const block = 4 << 10

// A stamp is what changes, and cannot be set back, when somebody writes to a file.
type stamp struct {
	Name  string `json:"name"`
	Dev   uint64 `json:"dev"`
	Inode uint64 `json:"inode"`
	Size  int64  `json:"size"`
	Mtime int64  `json:"mtime_ns"`
	Ctime int64  `json:"ctime_ns"`
	// Digest is that of the manifest.
	Digest string `json:"digest"`
}

func stampOf(f *os.File, want File) (stamp, error) {
	info, err := f.Stat()
	if err != nil {
		return stamp{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, errors.ErrUnsupported
	}
	return stamp{
		Name: want.Name, Dev: st.Dev, Inode: st.Ino, Size: st.Size,
		Mtime: st.Mtim.Nano(), Ctime: st.Ctim.Nano(), Digest: want.Digest,
	}, nil
}

func verify(ctx context.Context, dir string, m *Manifest) error {
	known := readStamps(dir)
	var all []stamp
	fresh := false
	for _, want := range m.Files {
		s, computed, err := verifyFile(ctx, dir, want, known)
		if err != nil {
			return err
		}
		all, fresh = append(all, s), fresh || computed
	}
	if fresh {
		// Without it the next check takes longer, that is all.
		if data, err := json.Marshal(all); err == nil {
			_ = replace(filepath.Join(dir, stampName), data)
		}
	}
	return nil
}

func verifyFile(ctx context.Context, dir string, want File, known []stamp) (s stamp, computed bool, err error) {
	f, err := openFile(filepath.Join(dir, want.Name))
	if err != nil {
		return stamp{}, false, err
	}
	defer func() { _ = f.Close() }()
	if s, err = stampOf(f, want); err != nil {
		return stamp{}, false, err
	}
	if s.Size != want.Size {
		return stamp{}, false, fmt.Errorf("%s has %d bytes, want %d", want.Name, s.Size, want.Size)
	}
	if slices.Contains(known, s) {
		return s, false, nil
	}
	sum, err := digest(ctx, f)
	if err != nil {
		return stamp{}, false, err
	}
	if sum != want.Digest {
		return stamp{}, false, fmt.Errorf("%s is damaged: its digest is %s, want %.80s", want.Name, sum, want.Digest)
	}
	return s, true, nil
}

func readStamps(dir string) []stamp {
	f, err := openFile(filepath.Join(dir, stampName))
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }()
	var all []stamp
	if json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&all) != nil { //nolint:forbidigo // limited, and our own file
		return nil
	}
	return all
}

// digest is SHA-256 over a file's size and over the number and content of each of
// its blocks that is not zero, so that it does not depend on where the file has
// holes, and holes take no time.
func digest(ctx context.Context, f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	h := sha256.New()
	var number [8]byte
	binary.LittleEndian.PutUint64(number[:], uint64(info.Size())) //nolint:gosec // not negative.
	_, _ = h.Write(number[:])
	buf := make([]byte, 256*block)
	err = extents(f, info.Size(), func(from, to int64) error {
		// Extents of a file system may be smaller than our blocks.
		for from -= from % block; from < to; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := f.ReadAt(buf[:min(int64(len(buf)), (to-from+block-1)/block*block)], from)
			if err != nil && (!errors.Is(err, io.EOF) || from+int64(n) != info.Size()) {
				return err
			}
			for at := 0; at < n; at += block {
				b := buf[at:min(at+block, n)]
				if zero(b) {
					continue
				}
				binary.LittleEndian.PutUint64(number[:], uint64((from+int64(at))/block)) //nolint:gosec // not negative.
				_, _ = h.Write(number[:])
				_, _ = h.Write(b)
			}
			from += int64(n)
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", filepath.Base(f.Name()), err)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

func zero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

// extents calls do for each part of a file that holds data, in order, never twice
// for the same block.
func extents(f *os.File, size int64, do func(from, to int64) error) error {
	for at := int64(0); at < size; {
		from, err := unix.Seek(int(f.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // only a hole is left
		}
		if err != nil {
			return err
		}
		to, err := unix.Seek(int(f.Fd()), from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		from = max(at, from-from%block)
		to = min(size, (to+block-1)/block*block)
		if err := do(from, to); err != nil {
			return err
		}
		at = to
	}
	return nil
}

// ImageDigest returns c's image digest, computed from the image where c lacks it.
func ImageDigest(ctx context.Context, c *vm.Config) (string, error) {
	if c.ImageDigest != "" {
		return c.ImageDigest, nil
	}
	f, err := os.Open(c.Image)
	if err != nil {
		return "", fmt.Errorf("cannot use image: %w", err)
	}
	defer func() { _ = f.Close() }()
	h := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		n, err := f.Read(buf)
		_, _ = h.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return "", fmt.Errorf("cannot read image: %w", err)
		}
	}
}
