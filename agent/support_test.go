package agent_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// patience is how long a test waits for what must come. It bounds a failure, and
// never a success.
const patience = 30 * time.Second

// startServer serves both ports on a unix socket until the test ends.
func startServer(t testing.TB, o agent.Options) (socket string) {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{})
	return serveOn(t, agent.NewServer(o))
}

func serveOn(t testing.TB, s *agent.Server) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), l, 0) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve returned %v", err)
		}
	})
	return socket
}

// A client writes and reads plain lines: nothing of ours is between it and the
// agent.
type client struct {
	t testing.TB
	net.Conn
	r  *bufio.Reader
	id uint64
}

func dial(t testing.TB, socket string) *client {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	return newClient(t, conn)
}

func newClient(t testing.TB, conn net.Conn) *client {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &client{t: t, Conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
}

func (c *client) send(text string) {
	c.t.Helper()
	if _, err := c.Write([]byte(text)); err != nil {
		c.t.Fatalf("cannot write %.80q: %v", text, err)
	}
}

func (c *client) line() string {
	c.t.Helper()
	line, err := c.r.ReadString('\n')
	if err != nil {
		c.t.Fatalf("cannot read a line: %v (after %.80q)", err, line)
	}
	return strings.TrimSuffix(line, "\n")
}

// expectEnd fails unless the agent has closed the connection.
func (c *client) expectEnd() {
	c.t.Helper()
	if b, err := c.r.ReadByte(); err == nil {
		rest, _ := c.r.ReadString('\n')
		c.t.Fatalf("got %.200q, want the end of the connection", string(b)+rest)
	} else if errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatal("the connection is still open")
	}
}

type response struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      uint64          `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (c *client) response() response {
	c.t.Helper()
	var r response
	line := c.line()
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		c.t.Fatalf("cannot read response %.200q: %v", line, err)
	}
	if (r.Error == nil) == (r.Result == nil) {
		c.t.Fatalf("response %.200q has not exactly one of result and error", line) // B4
	}
	return r
}

// request sends a call and returns its id.
func (c *client) request(method string, params any) uint64 {
	c.t.Helper()
	c.id++
	p, err := json.Marshal(params)
	if err != nil {
		c.t.Fatal(err)
	}
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", c.id, method, p))
	return c.id
}

// call makes a call whose answer must be the next line.
func (c *client) call(method string, params any) response {
	c.t.Helper()
	id := c.request(method, params)
	r := c.response()
	if r.ID != id {
		c.t.Fatalf("%s: got an answer to request %d, want %d", method, r.ID, id)
	}
	return r
}

// must makes a call that must succeed and decodes its result.
func must[T any](c *client, method string, params any) T {
	c.t.Helper()
	var v T
	r := c.call(method, params)
	if r.Error != nil {
		c.t.Fatalf("%s %v failed: %d %s", method, params, r.Error.Code, r.Error.Message)
	}
	dec := json.NewDecoder(bytes.NewReader(r.Result))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		c.t.Fatalf("%s: result %.200s: %v", method, r.Result, err)
	}
	return v
}

// refuse makes a call that must fail with that code and a message that contains
// text.
func refuse(c *client, code int, text, method string, params any) {
	c.t.Helper()
	r := c.call(method, params)
	switch {
	case r.Error == nil:
		c.t.Errorf("%s %.200v: got %.200s, want error %d %q", method, params, r.Result, code, text)
	case r.Error.Code != code || !strings.Contains(r.Error.Message, text):
		c.t.Errorf("%s %.200v: got error %d %.400q, want %d %q", method, params, r.Error.Code, r.Error.Message, code, text)
	}
}

type m = map[string]any

// marker returns an argument that no other process of the machine has.
func marker(testing.TB) string {
	return fmt.Sprintf("31%08d.%d", os.Getpid(), time.Now().UnixNano()%1e9)
}

// running counts the processes with an argument that equals mark.
func running(t testing.TB, mark string) int {
	t.Helper()
	return len(marked(t, mark))
}

// endMarked kills the processes with an argument that equals mark, of which there
// must be some, once they have started.
func endMarked(t testing.TB, mark string) {
	t.Helper()
	eventually(t, "the process to end has started", func() bool { return running(t, mark) > 0 })
	for _, pid := range marked(t, mark) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "it is gone", func() bool { return running(t, mark) == 0 })
}

func marked(t testing.TB, mark string) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		cmdline, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
			if string(arg) != mark {
				continue
			}
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f))); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func unixConn(t testing.TB, fd int) *net.UnixConn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socketpair")
	defer func() { _ = f.Close() }()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn)
}
