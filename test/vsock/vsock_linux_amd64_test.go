package vsock_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// limit is how long anything may take in an emulated machine on a busy host.
const limit = 60 * time.Second

func TestMain(m *testing.M) {
	life.Ready() // it lives as long as the process, so no ledger may see it come
	os.Exit(m.Run())
}

func timed(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	return ctx
}

// Both protocols through a real guest's AF_VSOCK.
func TestGuest(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	began := time.Now()
	hybrid := vsock.Hybrid{Path: boot(t)}
	client, err := bouvet.Connect(timed(t), hybrid, &bouvet.ClientOptions{ConnectTimeout: limit, RPCTimeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connected after %v", time.Since(began))
	defer func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, tt := range []struct {
		name string
		test func(*testing.T, *bouvet.AgentClient, vsock.Hybrid)
	}{
		{"rpc", testRPC},
		{"exec", testExec},
		{"files", testFiles},
		{"connection drops", testDrop},
		{"50 at once", testConcurrent},
		{"port without a listener", testNoListener},
		{"T25 guest's own processes", testOwnProcesses},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, client, hybrid) })
	}
}

func testRPC(t *testing.T, c *bouvet.AgentClient, _ vsock.Hybrid) {
	if err := c.Ping(timed(t)); err != nil {
		t.Error(err)
	}
	info, err := c.Info(timed(t))
	if err != nil || info.Protocol != wire.ProtocolVersion {
		t.Errorf("info: got %+v, %v", info, err)
	}
	r, err := c.Exec(timed(t), "echo out; echo err >&2; cat /proc/1/comm; exit 3", nil)
	if err != nil || r.ExitCode != 3 || r.Stdout != "out\nagent\n" || r.Stderr != "err\n" {
		t.Errorf("exec: got %+v, %v", r, err)
	}
}

func testExec(t *testing.T, c *bouvet.AgentClient, _ vsock.Hybrid) {
	cmd := c.Command(timed(t), "sh", "-c", "echo begin; cat; exit 7")
	cmd.Stdin = strings.NewReader(strings.Repeat("some input\n", 10_000))
	var out bytes.Buffer
	cmd.Stdout = &out
	err := cmd.Run()
	exit, ok := errors.AsType[*bouvet.ExitError](err)
	if !ok || exit.ExitCode() != 7 || out.String() != "begin\n"+strings.Repeat("some input\n", 10_000) {
		t.Errorf("got %v, %d bytes: %.40q", err, out.Len(), out.String())
	}
	// A signal reaches it, and its end is told.
	cmd = c.Command(timed(t), "sleep", "4711")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a command that was ended by a signal succeeded")
	}
}

func testFiles(t *testing.T, c *bouvet.AgentClient, _ vsock.Hybrid) {
	const size = 8 << 20
	content := make([]byte, size)
	_, _ = rand.Read(content)
	if n, err := c.Upload(timed(t), "/tmp/big", bytes.NewReader(content), nil); err != nil || n != size {
		t.Fatalf("upload: got %d, %v", n, err)
	}
	var back bytes.Buffer
	if n, err := c.Download(timed(t), "/tmp/big", &back); err != nil || n != size || !bytes.Equal(back.Bytes(), content) {
		t.Errorf("download: got %d bytes of %d, %v", n, size, err)
	}
}

// A host that goes away in the middle of a command takes the command with it, and
// nothing else.
func testDrop(t *testing.T, c *bouvet.AgentClient, hybrid vsock.Hybrid) {
	conn, err := hybrid.Dial(timed(t), wire.PortExec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "%s\n", `{"command":["sleep","98765"]}`); err != nil {
		t.Fatal(err)
	}
	running := func() (bool, error) {
		r, err := c.Exec(timed(t), "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '", nil)
		if err != nil {
			return false, err
		}
		return strings.Contains(r.Stdout, "sleep 98765"), nil
	}
	if err := wait.Until(timed(t), running); err != nil {
		t.Fatalf("the command does not start: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if err := wait.Until(timed(t), func() (bool, error) { r, err := running(); return !r, err }); err != nil {
		t.Errorf("the command goes on without its host: %v", err)
	}
}

func testConcurrent(t *testing.T, c *bouvet.AgentClient, _ vsock.Hybrid) {
	ctx := timed(t)
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			want := fmt.Sprintf("number %d\n", i)
			if i%2 == 0 {
				r, err := c.Exec(ctx, "echo number "+fmt.Sprint(i), nil)
				if err != nil || r.Stdout != want {
					t.Errorf("exec: got %+v, %v, want %q", r, err, want)
				}
				return
			}
			out, err := c.Command(ctx, "echo", "number", fmt.Sprint(i)).Output() //nolint:contextcheck // its connection ahead is the client's.
			if err != nil || string(out) != want {
				t.Errorf("command: got %q, %v, want %q", out, err, want)
			}
		})
	}
	all.Wait()
}

// T26: a port that nobody listens on ends the dial, soon.
func testNoListener(t *testing.T, _ *bouvet.AgentClient, hybrid vsock.Hybrid) {
	conn, err := hybrid.Dial(timed(t), 4711)
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, vsock.ErrNotReady) {
		t.Errorf("got %v, want that nobody listens", err)
	}
}

// A process of the guest's, root's or another's, does not get through to the agent by
// any context ID that there is.
func testOwnProcesses(t *testing.T, c *bouvet.AgentClient, _ vsock.Hybrid) {
	const program = `
import socket, sys
for cid in (0, 1, 2, 3, 0xffffffff):
    for port in (52, 10700):
        s = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        s.settimeout(0.5)
        try:
            s.connect((cid, port))
            s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' if port == 52 else b'{"command":["id"]}\n')
            got = s.recv(100)
            print(cid, port, "answers" if got else "closed", got)
        except OSError as e:
            print(cid, port, "refused", e)
`
	for _, user := range []string{"root", "user"} {
		cmd := c.Command(timed(t), "python3", "-c", program)
		cmd.User = user
		out, err := cmd.Output()
		if err != nil || strings.Contains(string(out), "answers") || strings.Count(string(out), "\n") != 10 {
			t.Errorf("%s: got %v:\n%s", user, err, out)
		}
		t.Logf("%s:\n%s", user, out)
	}
}
