package bouvet_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

const ponged = `
	< "id":(?P<id>\d+),"method":"ping"
	> {"jsonrpc":"2.0","id":${id},"result":{"pong":true}}
`

// answering is the script of an agent that answers ping and then one request of
// method with result.
func answering(method, result string) string {
	return ponged + `
	< "id":(?P<id>\d+),"method":"` + method + `"
	> {"jsonrpc":"2.0","id":${id},"result":` + result + `}
	eof
`
}

// T21: what a guest may say, but cannot be.
func TestAgentLies(t *testing.T) {
	for _, tt := range []struct {
		name, method, result string
		call                 func(c *bouvet.AgentClient) error
	}{
		{"exit 2^31", "exec", `{"exit_code":2147483648,"stdout":"","stderr":""}`, exec},
		{"exit 256", "exec", `{"exit_code":256,"stdout":"","stderr":""}`, exec},
		{"exit -2", "exec", `{"exit_code":-2,"stdout":"","stderr":""}`, exec},
		{"negative size", "list_dir", `{"entries":[{"name":"a","is_dir":false,"size":-1}]}`, listDir},
		{"size 2^63", "list_dir", `{"entries":[{"name":"a","is_dir":false,"size":9223372036854775808}]}`, listDir},
		{"name ..", "list_dir", `{"entries":[{"name":"..","is_dir":true,"size":0}]}`, listDir},
		{"name a/b", "list_dir", `{"entries":[{"name":"a/b","is_dir":true,"size":0}]}`, listDir},
		{"name NUL", "list_dir", `{"entries":[{"name":"a\u0000","is_dir":true,"size":0}]}`, listDir},
		{"empty name", "list_dir", `{"entries":[{"name":"","is_dir":true,"size":0}]}`, listDir},
		{"stat 2^63", "stat", `{"name":"a","path":"/a","type":"file","size":9223372036854775808,"mode":420,"uid":0,"gid":0,"mtime_ns":0}`, stat},
		{"stat type", "stat", `{"name":"a","path":"/a","type":"wormhole","size":0,"mode":420,"uid":0,"gid":0,"mtime_ns":0}`, stat},
		{"stat mode", "stat", `{"name":"a","path":"/a","type":"file","size":0,"mode":65535,"uid":0,"gid":0,"mtime_ns":0}`, stat},
		{"stat name", "stat", `{"name":"../a","path":"/a","type":"file","size":0,"mode":420,"uid":0,"gid":0,"mtime_ns":0}`, stat},
		{"read more than asked", "read_file", `{"content":"YWJj","encoding":"base64","size":3}`, readRange},
		{"read size", "read_file", `{"content":"YQ==","encoding":"base64","size":9223372036854775808}`, readRange},
		{"read bad base64", "read_file", `{"content":"%","encoding":"base64","size":1}`, readRange},
		{"read encoding", "read_file", `{"content":"","encoding":"rot13","size":1}`, readRange},
		{"write without success", "write_file", `{"success":false}`, func(c *bouvet.AgentClient) error { return c.WriteFile(t.Context(), "/a", "") }},
		{"pid", "processes", `{"processes":[{"pid":-7,"command":["x"],"started_ms":0,"running":true}]}`, func(c *bouvet.AgentClient) error {
			_, err := c.Processes(t.Context())
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t, wiretest.NewPeer(t, answering(tt.method, tt.result)), nil)
			if err := tt.call(c); !errors.Is(err, bouvet.ErrJSON) {
				t.Errorf("got %v, want a JSON error", err)
			}
		})
	}
}

func exec(c *bouvet.AgentClient) error {
	_, err := c.Exec(timeless, "x", nil)
	return err
}

func listDir(c *bouvet.AgentClient) error {
	_, err := c.ListDir(timeless, "/")
	return err
}

func stat(c *bouvet.AgentClient) error {
	_, err := c.Stat(timeless, "/a")
	return err
}

func readRange(c *bouvet.AgentClient) error {
	_, _, err := c.ReadFileRange(timeless, "/a", 0, 2)
	return err
}

// T18, T21: a reply longer than its method allows is refused before it is held.
func TestReplyTooLong(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		call         func(c *bouvet.AgentClient) error
	}{
		{"ping without end", "< ping\nrepeat 1G x", func(*bouvet.AgentClient) error { return nil }},
		{"exec without end", ponged + "< exec\nrepeat 1G x", exec},
		{"listing of 10^7 names", ponged + `
	< "id":(?P<id>\d+),"method":"list_dir"
	>> {"jsonrpc":"2.0","id":${id},"result":{"entries":[
	repeat 10000000 {"name":"a"},
	> {"name":"b"}]}}
	eof`, listDir},
		{"listing of too many names", ponged + `
	< "id":(?P<id>\d+),"method":"list_dir"
	>> {"jsonrpc":"2.0","id":${id},"result":{"entries":[
	repeat 500000 {"name":"a"},
	> {"name":"b"}]}}
	eof`, listDir},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			c, err := bouvet.Connect(t.Context(), wiretest.NewPeer(t, tt.script), nil)
			if err == nil {
				defer func() { _ = c.Close() }()
				err = tt.call(c)
			}
			if !errors.Is(err, bouvet.ErrJSON) {
				t.Errorf("got %v, want a JSON error", err)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			// The bound of a listing, grown by doubling, and a little.
			if got := after.TotalAlloc - before.TotalAlloc; got > 200<<20 {
				t.Errorf("allocated %d MiB in all", got>>20)
			}
		})
	}
}

// T19: an answer before the question, twice, or to nobody, answers nobody.
func TestUnaskedReplies(t *testing.T) {
	for _, tt := range []struct{ name, first string }{
		{"same id twice", ponged + `> {"jsonrpc":"2.0","id":${id},"result":{"pong":true}}` + "\neof"},
		// In one piece: what comes after we have looked is an answer like any other.
		{"next id in advance", `
			< "id":(?P<id>\d+),"method":"ping"
			>> {"jsonrpc":"2.0","id":${id},"result":{"pong":true}}\n{"jsonrpc":"2.0","id":2,"result":{"content":"evil"}}\n
			eof`},
		{"later", ponged + "drip 20ms  \n" + `> {"jsonrpc":"2.0","id":2,"result":{"content":"evil"}}` + "\neof"},
		{"a request", ponged + `> {"jsonrpc":"2.0","id":1,"method":"exec","params":{"cmd":"id"}}` + "\neof"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			second := `
				< "id":(?P<id>\d+),"method":"read_file"
				> {"jsonrpc":"2.0","id":${id},"result":{"content":"good"}}
				eof
			`
			peer := wiretest.NewPeer(t, tt.first, second)
			c := connect(t, peer, nil)
			deadline := time.Now().Add(5 * time.Second)
			for {
				content, err := c.ReadFile(t.Context(), "/x")
				if content == "evil" {
					t.Fatal("an answer that nobody asked for was taken")
				}
				if err == nil && content == "good" {
					break
				}
				// The stray line may arrive between our look and our request: that call
				// fails, and the one after it has a connection of its own.
				if !errors.Is(err, bouvet.ErrJSON) || time.Now().After(deadline) {
					t.Fatal(err)
				}
			}
		})
	}
}

// T17, T18: garbage and half messages end the call, not the client's process.
func TestGarbage(t *testing.T) {
	for seed := range 20 {
		script := ponged + fmt.Sprintf("< read_file\ngarbage 64K %d\n> \nclose", seed)
		c := connect(t, wiretest.NewPeer(t, script), nil)
		if _, err := c.ReadFile(t.Context(), "/x"); !errors.Is(err, bouvet.ErrJSON) && !errors.Is(err, bouvet.ErrIO) {
			t.Errorf("seed %d: got %v, want a JSON or I/O error", seed, err)
		}
	}
}

// T20: replies, then stalls in the middle.
func TestStall(t *testing.T) {
	c := connect(t, wiretest.NewPeer(t, ponged+"< read_file\n>> {\"jsonrpc\":\nstall"), &bouvet.ClientOptions{RPCTimeout: 50 * time.Millisecond})
	if _, err := c.ReadFile(t.Context(), "/x"); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("got %v, want a response timeout", err)
	}
}

// B9: the connection breaks in the middle of a reply.
func TestConnectionBreaks(t *testing.T) {
	for _, script := range []string{"< read_file\nclose", "< read_file\n>> {\"jsonrpc\":\nclose"} {
		c := connect(t, wiretest.NewPeer(t, ponged+script), nil)
		_, err := c.ReadFile(t.Context(), "/x")
		if !errors.Is(err, bouvet.ErrIO) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v, want an I/O error", err)
		}
	}
}

const upgraded = ponged + `
	< "id":(?P<id>\d+),"method":"(download|upload|watch|forward)"
	> {"jsonrpc":"2.0","id":${id},"result":{}}
`

// frame is the step of a script that writes a binary frame.
func frame(kind byte, payload string) string {
	return fmt.Sprintf("bytes %02x %08x %x\n", kind, len(payload), payload)
}

// T18, T21: streams of frames.
func TestStreamLies(t *testing.T) {
	download := func(c *bouvet.AgentClient) error {
		_, err := c.DownloadRange(timeless, "/x", io.Discard, 0, 3)
		return err
	}
	upload := func(c *bouvet.AgentClient) error {
		_, err := c.Upload(timeless, "/x", strings.NewReader("abc"), nil)
		return err
	}
	watch := func(c *bouvet.AgentClient) error {
		w, err := c.Watch(timeless, "/x", true)
		if err != nil {
			return err
		}
		defer func() { _ = w.Close() }()
		for range w.Events() {
		}
		return w.Err()
	}
	forward := func(c *bouvet.AgentClient) error {
		conn, err := c.Forward(timeless, 80)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = io.Copy(io.Discard, conn)
		return err
	}
	for _, tt := range []struct {
		name, script string
		call         func(c *bouvet.AgentClient) error
		want         error
	}{
		{"download of 4 GiB in a frame", "bytes 05 ffffffff\nstall", download, bouvet.ErrJSON},
		{"download of more than asked", frame(5, "abcd") + "eof", download, bouvet.ErrJSON},
		{"download of another kind", frame(2, "abc") + "eof", download, bouvet.ErrJSON},
		{"download of unknown kind", frame(99, "abc") + "eof", download, bouvet.ErrJSON},
		{"download that breaks", frame(5, "abc") + "close", download, bouvet.ErrIO},
		{"download that breaks in a frame", "bytes 05 00000003 61\nclose", download, bouvet.ErrIO},
		{"download that fails in the guest", frame(5, "a") + frame(6, `{"error":"input/output error"}`) + "eof", download, bouvet.ErrRPC},
		{"download with a bad end", frame(6, `{`) + "eof", download, bouvet.ErrJSON},
		{"upload that claims more", "bytes 06 0000000b " + fmt.Sprintf("%x", `{"size":44}`) + "\neof", upload, bouvet.ErrJSON},
		{"upload that fails", frame(6, `{"error":"no space left on device"}`) + "close", upload, bouvet.ErrRPC},
		{"upload that is not answered", "close", upload, bouvet.ErrIO},
		{"watch of ..", frame(4, `{"op":"create","name":"a/../../b"}`) + "eof", watch, bouvet.ErrJSON},
		{"watch of /", frame(4, `{"op":"create","name":"/etc/passwd"}`) + "eof", watch, bouvet.ErrJSON},
		{"watch of NUL", frame(4, `{"op":"create","name":"\u0000"}`) + "eof", watch, bouvet.ErrJSON},
		{"watch of unknown op", frame(4, `{"op":"explode","name":"a"}`) + "eof", watch, bouvet.ErrJSON},
		{"watch of 4 GiB", "bytes 04 ffffffff\nstall", watch, bouvet.ErrJSON},
		{"watch that breaks", "close", watch, bouvet.ErrIO},
		{"forward of unknown kind", frame(4, "abc") + "eof", forward, bouvet.ErrJSON},
		{"forward of 4 GiB", "bytes 05 ffffffff\nstall", forward, bouvet.ErrJSON},
		{"forward that breaks", frame(5, "abc") + "close", forward, io.ErrUnexpectedEOF},
		{"forward with an error", frame(6, `{"error":"connection refused"}`) + "eof", forward, bouvet.ErrRPC},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := connect(t, wiretest.NewPeer(t, upgraded+tt.script), nil)
			if err := tt.call(c); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// Extensions that an older agent lacks are named (-32601).
func TestOldAgent(t *testing.T) {
	c := connect(t, rpcPeer(pong(methodNotFound)), nil)
	ctx := t.Context()
	for what, call := range map[string]func() error{
		"stat":      func() error { _, err := c.Stat(ctx, "/"); return err },
		"make_dir":  func() error { _, err := c.MakeDir(ctx, "/", nil); return err },
		"move":      func() error { return c.Move(ctx, "/", "/") },
		"remove":    func() error { return c.Remove(ctx, "/x") },
		"processes": func() error { _, err := c.Processes(ctx); return err },
		"download":  func() error { _, err := c.Download(ctx, "/x", io.Discard); return err },
		"upload":    func() error { _, err := c.Upload(ctx, "/x", &bytes.Buffer{}, nil); return err },
		"forward":   func() error { _, err := c.Forward(ctx, 80); return err },
		"watch":     func() error { _, err := c.Watch(ctx, "/x", false); return err },
		"user": func() error {
			_, err := c.Exec(ctx, "id", &bouvet.ExecOptions{User: "nobody"})
			return err
		},
		"binary content": func() error { return c.WriteBytes(ctx, "/x", []byte{0xff}, nil) },
	} {
		err := call()
		if !errors.Is(err, bouvet.ErrUnsupported) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: got %v, want it named as not supported", what, err)
		}
	}
	// The seed's own methods are not extensions.
	if _, err := c.ReadFile(ctx, "/x"); !errors.Is(err, bouvet.ErrRPC) {
		t.Errorf("got %v, want an RPC error", err)
	}
}

// T19, over a mux: an idle stream that speaks unasked, or ends, is not used again.
func TestIdleMuxStream(t *testing.T) {
	for name, after := range map[string]string{
		"speaks": `{"jsonrpc":"2.0","id":2,"result":{"content":"evil"}}` + "\n",
		"ends":   "",
	} {
		t.Run(name, func(t *testing.T) {
			var streams atomic.Int64
			spoken := make(chan struct{})
			fake := vmtest.NewFake(t, vmtest.FakeOptions{Guest: vmtest.Scripted(func(ctx context.Context, conn net.Conn, _ uint32) {
				if streams.Add(1) > 1 {
					serveRPC(conn, pong(func(r wire.Request) string { return result(r, `{"content":"good"}`) }))
					return
				}
				defer close(spoken)
				line, err := bufio.NewReader(conn).ReadBytes('\n')
				if err != nil {
					t.Error(err)
				}
				req, _ := wire.DecodeRequest(line)
				_, _ = fmt.Fprintln(conn, result(req, `{"pong":true}`))
				if after == "" {
					_ = conn.Close() // before it is said to be
					return
				}
				_, _ = io.WriteString(conn, after)
				spoken <- struct{}{}
				<-ctx.Done()
			})})
			m := newManager(t, fake, bouvet.ManagerOptions{})
			s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
			if err != nil {
				t.Fatal(err)
			}
			<-spoken
			// What was said is on its way: a later stream overtakes nothing.
			other, err := s.Machine().Dial(t.Context(), wire.PortRPC)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = other.Close() }()
			if got, err := s.ReadFile(t.Context(), "/x"); got != "good" || err != nil {
				t.Errorf("got %q, %v, want the answer of a fresh stream", got, err)
			}
		})
	}
}
