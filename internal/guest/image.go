package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/image"
)

// Images that have not been asked for in keepFor are removed when a new one is
// written. A sandbox that runs keeps its image's file although it has no name.
const (
	keepFor      = 7 * 24 * time.Hour
	touchAfter   = 24 * time.Hour
	tempLifetime = time.Hour
)

// Image returns the absolute path of an EROFS image below dir that holds nothing
// but the agent, as /agent, and makes it if need be. The image is named by the
// agent's digest, so programs of different versions may share dir, and several
// may call Image at once. dir must exist.
func Image(dir string) (string, error) {
	agent, err := Resolve()
	if err != nil {
		return "", err
	}
	return agent.Image(dir)
}

// Image is like the function Image, for this agent.
func (a Agent) Image(dir string) (string, error) {
	want, err := a.encode()
	if err != nil {
		return "", fmt.Errorf("cannot make the agent's image: %w", err)
	}
	path, err := filepath.Abs(filepath.Join(dir, "agent-"+strings.TrimPrefix(a.Digest, "sha256:")+".erofs"))
	if err != nil {
		return "", fmt.Errorf("cannot make the agent's image: %w", err)
	}
	if current(path, want) {
		return path, nil
	}
	if err := replace(path, want); err != nil {
		return "", fmt.Errorf("cannot make the agent's image: %w", err)
	}
	prune(dir, path)
	return path, nil
}

// encode returns the image. It is always the same for the same agent.
func (a Agent) encode() ([]byte, error) {
	// The agent is read where it is: this happens whenever a host starts.
	var header bytes.Buffer
	w := tar.NewWriter(&header)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "agent", Mode: 0o555, Size: int64(len(a.Binary)), ModTime: time.Unix(0, 0)}); err != nil {
		return nil, err
	}
	padding := (512 - len(a.Binary)%512) % 512
	archive := io.MultiReader(&header, bytes.NewReader(a.Binary), bytes.NewReader(make([]byte, padding+1024)))
	out := &memory{b: make([]byte, 0, len(a.Binary)+1<<16)}
	layer := func(context.Context) (io.ReadCloser, error) { return io.NopCloser(archive), nil }
	if _, err := image.Flatten(context.Background(), []image.Layer{layer}, out, image.FlattenOptions{}); err != nil {
		return nil, err
	}
	return out.b, nil
}

// current reports whether the file at path is the image, whole; it is small
// enough to look at every time.
func current(path string, want []byte) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(want)) {
		return false
	}
	if time.Since(info.ModTime()) > touchAfter {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // says that it is in use; see prune
	}
	buf := make([]byte, 1<<16)
	for len(want) > 0 {
		n := min(len(buf), len(want))
		if _, err := io.ReadFull(f, buf[:n]); err != nil || !bytes.Equal(buf[:n], want[:n]) {
			return false
		}
		want = want[n:]
	}
	return true
}

// replace writes the file at path as a whole.
func replace(path string, data []byte) (err error) {
	temp := filepath.Join(filepath.Dir(path), "temp-"+rand.Text())
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp)
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o444), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// prune removes images of other versions that nobody has asked for in a long
// time, and files of writers that were killed.
func prune(dir, keep string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		path := filepath.Join(dir, e.Name())
		if err != nil || !info.Mode().IsRegular() || e.Name() == filepath.Base(keep) {
			continue
		}
		age := time.Since(info.ModTime())
		old := strings.HasPrefix(e.Name(), "agent-") && age > keepFor
		dead := strings.HasPrefix(e.Name(), "temp-") && age > tempLifetime
		if old || dead {
			_ = os.Remove(path)
		}
	}
}

// memory is an image being written, in memory.
type memory struct{ b []byte }

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	m.b = append(m.b, make([]byte, max(0, int(off)+len(p)-len(m.b)))...)
	return copy(m.b[off:], p), nil
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if off >= int64(len(m.b)) {
		return 0, io.EOF
	}
	n := copy(p, m.b[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (m *memory) Truncate(size int64) error {
	m.b = append(m.b, make([]byte, max(0, size-int64(len(m.b))))...)[:size]
	return nil
}
