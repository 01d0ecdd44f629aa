package bouvet_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// logBuffer collects log lines without their time.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// I1: each event of seed 000's table, at its level, with what it is to tell.
func TestLogEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		peer := rpcPeer(pong(func(r wire.Request) string {
			switch r.Method {
			case wire.MethodExec:
				return result(r, `{"exit_code":0,"stdout":"","stderr":""}`)
			case wire.MethodReadFile:
				return "" // never
			}
			return rpcFailure(r, -32603, "failed\nto\x1b[2J list")
		}))
		n := 0
		d := dialFunc(nil)
		d = func(ctx context.Context, port uint32) (conn net.Conn, err error) {
			if n++; n == 1 {
				return nil, vsock.ErrNotReady
			}
			return peer.Dial(ctx, port)
		}
		c := connect(t, d, &bouvet.ClientOptions{Name: "/run/v.sock", Log: log.logger(bouvet.LevelTrace)})
		_, _ = c.Exec(t.Context(), "echo", nil)
		_, _ = c.ListDir(t.Context(), "/d")
		_, _ = c.ReadFile(t.Context(), "/f")
		_ = c.WriteFile(t.Context(), "/w", "1234")
		_, _ = c.ExecCode(t.Context(), "python", "print()", nil)
		_ = c.Close()
		synctest.Wait()

		var failed logBuffer
		_, err := bouvet.Connect(t.Context(), dialFunc(func(context.Context, uint32) (net.Conn, error) {
			return nil, vsock.ErrNotReady
		}), &bouvet.ClientOptions{Log: failed.logger(slog.LevelWarn)})
		if err == nil {
			t.Error("connected to nothing")
		}
		for _, want := range []string{
			`level=DEBUG msg="connecting to agent" agent=/run/v.sock`,
			`level=DEBUG-4 msg="agent not reached yet" agent=/run/v.sock elapsed=0s attempt=1 error=`,
			`level=INFO msg="connected to agent" agent=/run/v.sock elapsed=1ms attempts=2`,
			`level=DEBUG msg="rpc request" agent=/run/v.sock method=exec id=2`,
			`level=DEBUG-4 msg="rpc request body" agent=/run/v.sock method=exec id=2 body=`,
			`level=DEBUG-4 msg="rpc response body" agent=/run/v.sock method=exec id=2 body=`,
			`level=DEBUG msg="rpc success" agent=/run/v.sock method=exec id=2`,
			`level=DEBUG msg="rpc error" agent=/run/v.sock method=list_dir id=3 code=-32603 message=`,
			`level=WARN msg="rpc timeout" agent=/run/v.sock method=read_file id=4 timeout=30s`,
			`level=DEBUG msg="executing command" agent=/run/v.sock command="\"echo\""`,
			`level=DEBUG msg="executing code" agent=/run/v.sock language="\"python\"" code_length=7`,
			`level=DEBUG msg="reading file" agent=/run/v.sock path="\"/f\""`,
			`level=DEBUG msg="writing file" agent=/run/v.sock path="\"/w\"" content_length=4`,
			`level=DEBUG msg="listing directory" agent=/run/v.sock path="\"/d\""`,
		} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("missing: %s", want)
			}
		}
		if want := `level=WARN msg="agent did not answer in time" elapsed=10s attempts=`; !strings.Contains(failed.String(), want) {
			t.Errorf("got %q, missing: %s", failed.String(), want)
		}
		if strings.Contains(log.String(), "\x1b") {
			t.Error("text of the guest is in the log as it came")
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
}

// T23: what a guest says stays on its line and is capped.
func TestLogGuestText(t *testing.T) {
	var log logBuffer
	hostile := strings.Repeat("x\x1b]0;a\x07\r\nlevel=ERROR ", 1<<11)
	c := connect(t, rpcPeer(pong(func(r wire.Request) string {
		r.Method = ""
		b, err := wire.AppendLine(nil, wire.Response{JSONRPC: "2.0", ID: r.ID, Error: &wire.RPCError{Code: 1, Message: hostile}})
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSuffix(string(b), "\n")
	})), &bouvet.ClientOptions{Log: log.logger(bouvet.LevelTrace)})
	_, err := c.Exec(t.Context(), hostile, nil)
	var rpc *bouvet.RPCError
	if !errors.As(err, &rpc) || len(rpc.Message) > 5<<10 {
		t.Errorf("got %d bytes of error, want them capped", len(err.Error()))
	}
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "level=DEBUG") && !strings.HasPrefix(line, "level=INFO") {
			t.Errorf("a line of the guest's own: %.80q", line)
		}
		if len(line) > 32<<10 || strings.ContainsAny(line, "\x1b\x07\r") {
			t.Errorf("%d bytes, %.80q", len(line), line)
		}
	}
}

// L7: a command's timeout is longer than the RPC timeout: the call waits for it,
// and a little more.
func TestExecTimeoutOutlastsRPCTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Uint64
		peer := rpcPeer(pong(func(r wire.Request) string {
			var p wire.ExecParams
			if err := wire.DecodeParams(r.Params, &p); err != nil {
				t.Error(err)
			}
			told.Store(p.TimeoutMS)
			return "" // an agent that does not keep to it
		}))
		c := connect(t, peer, nil)
		start := time.Now()
		_, err := c.Exec(t.Context(), "x", &bouvet.ExecOptions{Timeout: time.Minute})
		var timeout *bouvet.TimeoutError
		if !errors.As(err, &timeout) || timeout.Timeout != time.Minute || timeout.Result != nil {
			t.Errorf("got %v, want a TimeoutError without a result", err)
		}
		if got := time.Since(start); got <= time.Minute || got > time.Minute+5*time.Second || told.Load() != 60_000 {
			t.Errorf("took %v, told the agent %d ms, want a little over a minute and 60000", got, told.Load())
		}
		_ = c.Close()
		synctest.Wait()
	})
}
