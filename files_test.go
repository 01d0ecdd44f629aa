package bouvet_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
)

// Extensions of port 52, through the real agent.
func TestFiles(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	c, ctx := s.Client(), t.Context()
	info, err := c.Info(ctx)
	if err != nil || info.Agent != "bouvet-agent" || !info.Has(wire.CapExecBinary) {
		t.Errorf("got %+v, %v", info, err)
	}
	if made, err := c.MakeDir(ctx, dir+"/a/b", &bouvet.FileOptions{Mode: 0o750}); err != nil || !made {
		t.Errorf("MakeDir: got %v, %v", made, err)
	}
	if made, err := c.MakeDir(ctx, dir+"/a/b", nil); err != nil || made {
		t.Errorf("second MakeDir: got %v, %v", made, err)
	}
	binary := []byte("\x00\xff\xfe" + strings.Repeat("x", 100))
	if err := c.WriteBytes(ctx, dir+"/a/bin", binary, &bouvet.FileOptions{Mode: 0o4750 &^ 0o4000}); err != nil {
		t.Error(err)
	}
	if err := c.WriteBytes(ctx, dir+"/a/setuid", nil, &bouvet.FileOptions{Mode: fs.ModeSetuid | 0o755}); err != nil {
		t.Error(err)
	}
	if st, err := c.Stat(ctx, dir+"/a/setuid"); err != nil || st.Mode != 0o4755 {
		t.Errorf("got %+v, %v, want mode 4755", st, err)
	}
	if got, err := c.ReadBytes(ctx, dir+"/a/bin"); err != nil || !bytes.Equal(got, binary) {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := c.ReadFile(ctx, dir+"/a/bin"); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("got %v for text that is none, want an RPC error", err)
	}
	if got, size, err := c.ReadFileRange(ctx, dir+"/a/bin", 1, 2); err != nil || size != 103 || string(got) != "\xff\xfe" {
		t.Errorf("got %q of %d, %v", got, size, err)
	}
	if got, _, err := c.ReadFileRange(ctx, dir+"/a/bin", 500, 2); err != nil || len(got) != 0 {
		t.Errorf("past the end: got %q, %v", got, err)
	}
	for _, r := range [][2]int64{{-1, 1}, {0, 0}, {0, wire.MaxContent + 1}} {
		if _, _, err := c.ReadFileRange(ctx, dir+"/a/bin", r[0], r[1]); err == nil {
			t.Errorf("range %v was read", r)
		}
	}
	st, err := c.Stat(ctx, dir+"/a/bin")
	if err != nil || st.Size != 103 || st.Type != wire.TypeFile || st.Mode != 0o750 || st.Name != "bin" {
		t.Errorf("got %+v, %v", st, err)
	}
	if st, err := c.Stat(ctx, "/"); err != nil || st.Type != wire.TypeDir {
		t.Errorf("got %+v, %v", st, err)
	}
	if err := c.Move(ctx, dir+"/a/bin", dir+"/moved"); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, dir+"/a"); err != nil {
		t.Error(err)
	}
	entries, err := c.ListDir(ctx, dir)
	if err != nil || len(entries) != 1 || entries[0].Name != "moved" {
		t.Errorf("got %v, %v", entries, err)
	}
	r, err := c.Exec(ctx, "pwd; echo $X", &bouvet.ExecOptions{Dir: dir, Env: []string{"X=y"}, Timeout: 10 * time.Second})
	if err != nil || r.Stdout != dir+"\ny\n" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// D9: content of 10 MiB goes through in its worst escaping.
func TestLargestContent(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{RPCTimeout: 5 * time.Minute})
	size := wire.MaxContent
	if raceEnabled {
		size /= 8 // the encoders take minutes
	}
	want := strings.Repeat("\x01", size)
	if err := s.WriteFile(t.Context(), dir+"/x", want); err != nil {
		t.Fatal(err)
	}
	got, err := s.ReadFile(t.Context(), dir+"/x")
	if err != nil || got != want {
		t.Errorf("got %d bytes, %v, want %d", len(got), err, len(want))
	}
}

// Bulk transfer in both directions: any size, binary, atomic.
func TestTransfer(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	c, ctx := s.Client(), t.Context()
	for _, size := range []int{0, 1, 256 << 10, 20<<20 + 7} {
		content := make([]byte, size)
		_, _ = rand.Read(content)
		path := dir + "/up/file"
		if n, err := c.Upload(ctx, path, bytes.NewReader(content), &bouvet.FileOptions{Mode: 0o640}); err != nil || n != int64(size) {
			t.Fatalf("upload of %d: got %d, %v", size, n, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != 0o640 || info.Size() != int64(size) {
			t.Errorf("got %v, %v", info, err)
		}
		got := sha256.New()
		if n, err := c.Download(ctx, path, got); err != nil || n != int64(size) {
			t.Fatalf("download of %d: got %d, %v", size, n, err)
		}
		if want := sha256.Sum256(content); !bytes.Equal(got.Sum(nil), want[:]) {
			t.Errorf("size %d: bytes differ", size)
		}
	}
	var part bytes.Buffer
	if err := os.WriteFile(dir+"/digits", []byte("0123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := c.DownloadRange(ctx, dir+"/digits", &part, 3, 4); n != 4 || err != nil || part.String() != "3456" {
		t.Errorf("got %d, %q, %v", n, &part, err)
	}
	if _, err := c.Download(ctx, dir+"/none", io.Discard); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("got %v, want an RPC error", err)
	}
	boom := errors.New("boom")
	if _, err := c.Download(ctx, dir+"/digits", writerFunc(func([]byte) (int, error) { return 0, boom })); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}

	// What fails leaves the old file and nothing beside it.
	old := filepath.Join(dir, "old")
	if err := os.WriteFile(old, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), readerFunc(func([]byte) (int, error) { return 0, boom }))
	if _, err := c.Upload(ctx, old, broken, nil); !errors.Is(err, boom) {
		t.Errorf("got %v, want %v", err, boom)
	}
	cause := errors.New("changed my mind")
	cancelled, cancel := context.WithCancelCause(ctx)
	reads := 0
	if _, err := c.Upload(cancelled, old, readerFunc(func(b []byte) (int, error) {
		if reads++; reads == 100 {
			cancel(cause)
		}
		return min(len(b), 64<<10), nil
	}), nil); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
	if _, err := c.Upload(ctx, dir+"/up", strings.NewReader("x"), nil); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("over a directory: got %v, want an RPC error", err)
	}
	awaitNames(t, dir, "digits", "old", "up")
	if b, err := os.ReadFile(old); string(b) != "old" || err != nil {
		t.Errorf("got %q, %v, want the old content", b, err)
	}
}

// awaitNames waits until dir holds these names alone: the agent removes what a
// broken upload left as soon as it sees the end of the connection.
func awaitNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if slices.Equal(names, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v, want %v", names, want)
		}
		time.Sleep(time.Millisecond) // nothing tells of it
	}
}

func TestWatch(t *testing.T) {
	s, dir := newSandbox(t, bouvet.Config{})
	w, err := s.Client().Watch(t.Context(), dir, true)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/a", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-w.Events():
		if want := (bouvet.WatchEvent{Op: wire.WatchCreate, Name: "a"}); e != want {
			t.Errorf("got %+v, want %+v", e, want)
		}
	case <-time.After(10 * time.Second):
		t.Error("no event")
	}
	for range 2 {
		if err := w.Close(); err != nil || w.Err() != nil {
			t.Errorf("got %v and %v", err, w.Err())
		}
	}
	if _, open := <-w.Events(); open {
		t.Error("an event after Close")
	}
	if _, err := s.Client().Watch(t.Context(), dir+"/none", false); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("got %v, want an RPC error", err)
	}
}

// echo listens on the loopback of the fake guest, which is this host's.
func echo(t *testing.T, serve func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			}()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func TestForward(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	port := echo(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	conn, err := s.Client().Forward(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	const size = 4 << 20
	go func() {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Error(err)
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
			t.Error(err)
		}
	}()
	// The half-close goes to the program, whose end comes back.
	if n, err := io.Copy(io.Discard, conn); n != size || err != nil {
		t.Errorf("got %d bytes, %v, want %d", n, err, size)
	}
	if _, err := conn.Write([]byte("x")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("write after CloseWrite: got %v", err)
	}
	if _, err := s.Client().Forward(t.Context(), 0); err == nil {
		t.Error("connected to port 0")
	}
	closed := echo(t, nil)
	_ = closed
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := uint16(l.Addr().(*net.TCPAddr).Port)
	_ = l.Close()
	if c, err := s.Client().Forward(t.Context(), free); err == nil {
		_ = c.Close()
		t.Error("connected to a port where nobody listens")
	}
}

// A forwarded connection is a net.Conn as the standard library wants it.
func TestForwardConn(t *testing.T) {
	s, _ := newSandbox(t, bouvet.Config{})
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		accepted := make(chan net.Conn, 1)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, nil, nil, err
		}
		go func() {
			conn, err := l.Accept()
			if err == nil {
				accepted <- conn
			}
		}()
		c1, err = s.Client().Forward(context.Background(), uint16(l.Addr().(*net.TCPAddr).Port))
		if err != nil {
			return nil, nil, nil, err
		}
		c2 = <-accepted
		return c1, c2, func() { _, _, _ = c1.Close(), c2.Close(), l.Close() }, nil
	})
}
