package agent_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/wire"
)

type endFrame struct {
	Error string `json:"error"`
	Size  uint64 `json:"size"`
}

// frame reads one binary frame by hand.
func (c *client) frame() (kind byte, payload []byte) {
	c.t.Helper()
	var h [5]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		c.t.Fatalf("cannot read frame: %v", err)
	}
	n := int(h[1])<<24 | int(h[2])<<16 | int(h[3])<<8 | int(h[4])
	if n > 1<<20 {
		c.t.Fatalf("frame of kind %d claims %d bytes", h[0], n)
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(c.r, payload); err != nil {
		c.t.Fatalf("cannot read payload: %v", err)
	}
	return h[0], payload
}

func bulkFrame(kind byte, payload string) string {
	n := len(payload)
	return string([]byte{kind, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + payload
}

// data reads data frames up to the end frame.
func (c *client) data() ([]byte, endFrame) {
	c.t.Helper()
	var all []byte
	for {
		kind, payload := c.frame()
		switch kind {
		case 5:
			all = append(all, payload...)
		case 6:
			var end endFrame
			if err := json.Unmarshal(payload, &end); err != nil {
				c.t.Fatalf("end frame %q: %v", payload, err)
			}
			return all, end
		default:
			c.t.Fatalf("frame of kind %d in a data stream", kind)
		}
	}
}

func TestDownload(t *testing.T) {
	socket := startServer(t, agent.Options{})
	data := randomBytes(5<<20 + 3)
	path := writeTemp(t, "f", data)
	empty := writeTemp(t, "empty", nil)
	for _, x := range []struct {
		params m
		want   []byte
	}{
		{m{"path": path}, data},
		{m{"path": path, "offset": 5 << 20}, data[5<<20:]},
		{m{"path": path, "offset": 7, "length": 300_000}, data[7:300_007]},
		{m{"path": path, "offset": 5 << 20, "length": 100}, data[5<<20:]},
		{m{"path": path, "offset": 6 << 20}, nil},
		{m{"path": empty}, nil},
	} {
		c := dial(t, socket)
		must[struct{}](c, "download", x.params)
		got, end := c.data()
		if !bytes.Equal(got, x.want) || end != (endFrame{}) {
			t.Errorf("%v: got %d bytes and %+v, want %d bytes", x.params, len(got), end, len(x.want))
		}
		c.expectEnd()
	}
	// A download that cannot begin leaves the connection as it was.
	c := dial(t, socket)
	refuse(c, -32603, "is a directory", "download", m{"path": "/"})
	refuse(c, -32602, "path", "download", nil)
	must[m](c, "ping", nil)
	// One that fails midway says so.
	must[struct{}](c, "download", m{"path": "/proc/self/mem"})
	if _, end := c.data(); !strings.Contains(end.Error, "failed to read '/proc/self/mem': input/output error") {
		t.Errorf("got end %+v, want an error", end)
	}
}

func TestUpload(t *testing.T) {
	socket := startServer(t, agent.Options{})
	dir := t.TempDir()
	data := string(randomBytes(3<<20 + 1))
	path := filepath.Join(dir, "new", "f")
	upload := func(params m, sends ...string) endFrame {
		t.Helper()
		c := dial(t, socket)
		must[struct{}](c, "upload", params)
		for _, s := range sends {
			c.send(s)
		}
		kind, payload := c.frame()
		var end endFrame
		if err := json.Unmarshal(payload, &end); kind != 6 || err != nil {
			t.Fatalf("got frame %d %q, %v", kind, payload, err)
		}
		c.expectEnd()
		return end
	}
	holds := func(path, want string, mode os.FileMode) os.FileInfo {
		t.Helper()
		got, err := os.ReadFile(path)
		info, _ := os.Stat(path)
		if err != nil || string(got) != want || info.Mode() != mode {
			t.Fatalf("%s holds %d bytes with mode %v (%v), want %d with %v", path, len(got), info.Mode(), err, len(want), mode)
		}
		return info
	}
	end := `{"error":""}`
	got := upload(m{"path": path}, bulkFrame(5, data[:1<<20]), bulkFrame(5, ""), bulkFrame(5, data[1<<20:2<<20]), bulkFrame(5, data[2<<20:3<<20]), bulkFrame(5, data[3<<20:])+bulkFrame(6, end))
	if got.Error != "" || got.Size != 3<<20+1 {
		t.Errorf("got %+v", got)
	}
	before := holds(path, data, 0o644)
	// Atomic: another file, with the old one's mode, through a link.
	if err := os.Chmod(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("new/f", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if got := upload(m{"path": dir + "/link"}, bulkFrame(5, "second")+bulkFrame(6, end)); got.Size != 6 {
		t.Errorf("got %+v", got)
	}
	if after := holds(path, "second", 0o750); os.SameFile(before, after) {
		t.Error("the file was written to, want it replaced")
	}
	if got := upload(m{"path": path, "mode": 0o4711}, bulkFrame(6, end)); got != (endFrame{}) {
		t.Errorf("got %+v", got)
	}
	holds(path, "", 0o711|os.ModeSetuid)
	if os.Getuid() == 0 {
		if got := upload(m{"path": path, "user": "12345:54321", "mode": 0o600}, bulkFrame(5, "x")+bulkFrame(6, end)); got.Error != "" {
			t.Errorf("got %+v", got)
		}
		if st := holds(path, "x", 0o600).Sys().(*syscall.Stat_t); st.Uid != 12345 || st.Gid != 54321 {
			t.Errorf("it belongs to %d:%d", st.Uid, st.Gid)
		}
	}
	if err := os.WriteFile(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	// What fails leaves the old file and nothing else. T18.
	for _, x := range []struct{ sends, want string }{
		{bulkFrame(5, "half") + bulkFrame(6, `{"error":"disk on fire"}`), "the host gave up: disk on fire"},
		{bulkFrame(5, "half") + bulkFrame(4, "{}"), "kind 4 has no place here"},
		{bulkFrame(5, "half") + "\x07\x00\x00\x00\x00", "unknown kind 7"},
		{bulkFrame(5, "half") + "\x05\xff\xff\xff\xff", "payload of 4294967295 bytes"},
		{bulkFrame(5, "half") + bulkFrame(6, "null!"), "malformed frame"},
	} {
		if got := upload(m{"path": path}, x.sends); !strings.Contains(got.Error, x.want) {
			t.Errorf("%q: got %+v, want %q", x.sends, got, x.want)
		}
	}
	// T15: the host goes away midway.
	c := dial(t, socket)
	must[struct{}](c, "upload", m{"path": path})
	c.send(bulkFrame(5, "half") + "\x05\x00\x00")
	_ = c.Close()
	eventually(t, "no temporary file is left", func() bool {
		files, err := os.ReadDir(filepath.Dir(path))
		return err == nil && len(files) == 1
	})
	if got, err := os.ReadFile(path); string(got) != "kept" || err != nil {
		t.Errorf("after failed uploads the file holds %q, %v", got, err)
	}
}

// The target of an upload is a directory by the time all has arrived.
func TestUploadThatCannotReplace(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	dir := t.TempDir()
	must[struct{}](c, "upload", m{"path": dir + "/x"})
	if err := os.MkdirAll(dir+"/x/y", 0o700); err != nil {
		t.Fatal(err)
	}
	c.send(bulkFrame(5, "z") + bulkFrame(6, "{}"))
	if _, end := c.data(); !strings.Contains(end.Error, "failed to write '"+dir+"/x': ") {
		t.Errorf("got %+v", end)
	}
	c.expectEnd()
	if files, err := os.ReadDir(dir); len(files) != 1 || err != nil {
		t.Errorf("left: %v, %v", files, err)
	}
}

// echoServer answers each connection with what it read, once that has ended.
func listenTCP(t testing.TB, address string, serve func(*net.TCPConn)) (port int) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("cannot listen on %s: %v; `ip link set lo up`", address, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serve(conn.(*net.TCPConn))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-done
	})
	return l.Addr().(*net.TCPAddr).Port
}

func TestForward(t *testing.T) {
	socket := startServer(t, agent.Options{})
	echo := func(c *net.TCPConn) {
		h := sha256.New()
		n, _ := io.Copy(h, c)
		_, _ = fmt.Fprintf(c, "%d %x", n, h.Sum(nil))
	}
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			port := listenTCP(t, address, echo)
			c := dial(t, socket)
			must[struct{}](c, "forward", m{"port": port})
			data := string(randomBytes(2 << 20))
			c.send(bulkFrame(5, data[:1<<20]) + bulkFrame(5, data[1<<20:]) + bulkFrame(6, "{}")) // half-close: the answer comes only then
			got, end := c.data()
			if want := fmt.Sprintf("%d %x", len(data), sha256.Sum256([]byte(data))); string(got) != want || end.Error != "" {
				t.Errorf("got %q, %+v, want %q", got, end, want)
			}
			c.expectEnd()
		})
	}
	t.Run("the target ends first", func(t *testing.T) {
		port := listenTCP(t, "127.0.0.1:0", func(c *net.TCPConn) {
			_, _ = io.WriteString(c, "bye")
			_ = c.CloseWrite()
			_, _ = io.Copy(io.Discard, c)
		})
		c := dial(t, socket)
		must[struct{}](c, "forward", m{"port": port})
		if got, end := c.data(); string(got) != "bye" || end.Error != "" {
			t.Errorf("got %q, %+v", got, end)
		}
		c.send(bulkFrame(5, "still open") + bulkFrame(6, "{}"))
		c.expectEnd()
	})
	t.Run("the host goes away", func(t *testing.T) {
		ended := make(chan error, 1)
		port := listenTCP(t, "127.0.0.1:0", func(c *net.TCPConn) {
			_, err := io.Copy(io.Discard, c)
			ended <- err
		})
		c := dial(t, socket)
		must[struct{}](c, "forward", m{"port": port})
		_ = c.Close()
		if err := <-ended; err != nil {
			t.Errorf("the target saw %v, want a plain end", err)
		}
	})
	t.Run("T18 malformed frame", func(t *testing.T) {
		port := listenTCP(t, "127.0.0.1:0", echo)
		c := dial(t, socket)
		must[struct{}](c, "forward", m{"port": port})
		c.send("\x05\x7f\xff\xff\xff")
		c.data()
		c.expectEnd()
	})
	c := dial(t, socket)
	refuse(c, -32602, "port", "forward", m{"port": 0})
	refuse(c, -32602, "port", "forward", m{"port": 65536})
	refuse(c, -32602, "port", "forward", m{"port": "80"}) // daytona#5147: a port is a number, once
	must[m](c, "ping", nil)
}

// The bulk streams against a plain copy over the same kind of socket.
const bulk = 256 << 20

func BenchmarkPlainCopy(b *testing.B) {
	path := bulkFile(b)
	b.SetBytes(bulk)
	for b.Loop() {
		host, guest := socketpair(b)
		go func() {
			f, err := os.Open(path)
			if err == nil {
				_, _ = io.CopyBuffer(struct{ io.Writer }{guest}, struct{ io.Reader }{f}, make([]byte, 256<<10))
				_ = f.Close()
			}
			_ = guest.Close()
		}()
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{host}, make([]byte, 256<<10))
		if n != bulk || err != nil {
			b.Fatal(n, err)
		}
		_ = host.Close()
	}
}

func BenchmarkDownload(b *testing.B) {
	path := bulkFile(b)
	socket := serveOn(b, agent.NewServer(agent.Options{}))
	b.SetBytes(bulk)
	for b.Loop() {
		c := dial(b, socket)
		must[struct{}](c, "download", m{"path": path})
		frames := wire.NewFrameReader(c.r)
		for n := 0; ; {
			kind, payload, err := frames.ReadFrame()
			if err != nil {
				b.Fatal(err)
			}
			if kind == wire.FrameEnd {
				if n != bulk {
					b.Fatal(n)
				}
				break
			}
			n += len(payload)
		}
		_ = c.Close()
	}
}

// BenchmarkPlainCopyToFile is what an upload is measured against.
func BenchmarkPlainCopyToFile(b *testing.B) {
	path := bulkFile(b)
	b.SetBytes(bulk)
	for b.Loop() {
		host, guest := socketpair(b)
		done := make(chan error, 1)
		go func() {
			f, err := os.OpenFile(path+".copy", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{guest}, make([]byte, 256<<10))
				_ = f.Close()
			}
			done <- err
		}()
		chunk := make([]byte, 256<<10)
		for range bulk / len(chunk) {
			if _, err := host.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
		_ = host.Close()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		_ = guest.Close()
	}
}

func BenchmarkUpload(b *testing.B) {
	path := bulkFile(b)
	socket := serveOn(b, agent.NewServer(agent.Options{}))
	b.SetBytes(bulk)
	for b.Loop() {
		c := dial(b, socket)
		must[struct{}](c, "upload", m{"path": path + ".copy"})
		chunk := []byte(bulkFrame(5, string(make([]byte, 256<<10))))
		for range bulk / (256 << 10) {
			if _, err := c.Write(chunk); err != nil {
				b.Fatal(err)
			}
		}
		c.send(bulkFrame(6, "{}"))
		if _, end := c.data(); end.Size != bulk {
			b.Fatalf("%+v", end)
		}
		_ = c.Close()
	}
}

func bulkFile(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bulk")
	if err := os.WriteFile(path, randomBytes(bulk), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}
