package agent_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/agent/proc"
)

const started = `"started":true`

// started reads the started frame.
func (x *execution) started() frame {
	x.t.Helper()
	f := x.frame()
	if f.Type != "started" || f.PID == 0 {
		x.t.Fatalf("got %+v, want a started frame", f)
	}
	return f
}

func attach(t testing.TB, socket, id string, more ...string) *execution {
	t.Helper()
	return execute(t, socket, `{"attach":"`+id+`"`+strings.Join(append([]string{""}, more...), ",")+"}")
}

func TestExecDetach(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		t.Run("outlives its host, is joined, and its input goes on", func(t *testing.T) {
			mark := marker(t)
			x := execute(t, socket, shRequest("echo one; while read line; do echo got $line; done; echo end; exit 9", framing, started, `"detach":true`, `"id":"`+mark+`"`))
			f := x.started()
			if f.ID != mark || f.Offset != nil && *f.Offset != 0 {
				t.Errorf("got %+v, want id %q and offset 0", f, mark)
			}
			x.awaitOutput("one\n")
			x.stdin("two\n")
			x.awaitOutput("got two\n")
			_ = x.Close()

			y := attach(t, socket, mark, framing, started)
			if g := y.started(); g.PID != f.PID || g.ID != mark || g.Offset == nil || *g.Offset != uint64(len("one\ngot two\n")) {
				t.Errorf("got %+v, want the process where it was left", g)
			}
			y.stdin("three\n")
			y.awaitOutput("got three\n")
			z := attach(t, socket, mark, framing, started, `"replay_from":4`)
			if g := z.started(); g.Offset == nil || *g.Offset != 4 {
				t.Errorf("got %+v, want offset 4", g)
			}
			z.awaitOutput("got two\ngot three\n")
			z.eof()
			for _, c := range []*execution{y, z} {
				if o := c.finish(); o.stdout != "end\n" || o.exit.ExitCode != 9 {
					t.Errorf("got %+v, want the end and exit code 9", o)
				}
			}
			// The end is remembered, with the output.
			o := attach(t, socket, mark, framing, `"replay_from":0`).finish()
			if o.stdout != "one\ngot two\ngot three\nend\n" || o.exit.ExitCode != 9 {
				t.Errorf("got %+v, want all of it", o)
			}
		})
		t.Run("streams keep their order", func(t *testing.T) {
			x := execute(t, socket, shRequest("for i in 1 2 3 4 5; do echo $i; sleep 0.01; echo e$i >&2; sleep 0.01; done", framing, started, `"detach":true`))
			id := x.started().ID
			if o := x.finish(); o.stdout != "1\n2\n3\n4\n5\n" || o.stderr != "e1\ne2\ne3\ne4\ne5\n" {
				t.Errorf("got %+v", o)
			}
			if o := attach(t, socket, id, framing, `"replay_from":0`).finish(); o.stdout != "1\n2\n3\n4\n5\n" || o.stderr != "e1\ne2\ne3\ne4\ne5\n" {
				t.Errorf("replay: got %+v", o)
			}
		})
		t.Run("replay is bounded", func(t *testing.T) {
			x := execute(t, socket, shRequest("echo go; read go; head -c 3000000 /dev/zero; printf end", framing, started, `"detach":true`))
			id := x.started().ID
			x.stdin("go\n")
			_ = x.Close()
			var o outcome
			eventually(t, "the end", func() bool {
				y := attach(t, socket, id, framing, started, `"replay_from":0`)
				y.started()
				o = y.finish()
				return strings.HasSuffix(o.stdout, "end")
			})
			o = attach(t, socket, id, framing, `"replay_from":0`).finish()
			if len(o.stdout) != proc.HubSize || o.exit.ExitCode != 0 {
				t.Errorf("got %d bytes and %+v, want the last %d", len(o.stdout), o.exit, proc.HubSize)
			}
		})
		t.Run("timeout, signal and terminal", func(t *testing.T) {
			x := execute(t, socket, shRequest("sleep 600", framing, started, `"detach":true`, `"timeout_ms":100`))
			x.started()
			if o := x.finish(); o.exit.Error != "timed out after 100ms" || !o.exit.TimedOut {
				t.Errorf("got %+v, want a timeout", o.exit)
			}
			x = execute(t, socket, shRequest("stty size; exec sh -c 'echo ready; exec cat'", framing, started, tty, `"detach":true`))
			id := x.started().ID
			x.awaitOutput("24 80\r\nready") // a shell that waits for a child may swallow a SIGINT
			_ = x.Close()
			y := attach(t, socket, id, framing)
			y.input(`{"type":"signal","signal":2}`)
			if o := y.finish(); o.exit.Error != "signal: interrupt" {
				t.Errorf("got %+v, want an interrupt", o.exit)
			}
		})
		t.Run("an error of one host is its own", func(t *testing.T) {
			x := execute(t, socket, shRequest("echo ready; cat", framing, started, `"detach":true`))
			id := x.started().ID
			x.awaitOutput("ready")
			y := attach(t, socket, id, framing)
			y.input("nonsense")
			if o := y.finish(); o.exit.ExitCode != -1 || !strings.HasPrefix(o.exit.Error, "protocol error: ") {
				t.Errorf("got %+v, want a protocol error", o.exit)
			}
			x.stdin("more")
			x.awaitOutput("more")
			x.eof()
			if o := x.finish(); o.exit.ExitCode != 0 {
				t.Errorf("got %+v, want the process to live on", o.exit)
			}
		})
	})
	t.Run("id in use", func(t *testing.T) {
		mark := marker(t)
		x := execute(t, socket, shRequest("cat", `"detach":true`, started, `"id":"`+mark+`"`))
		x.started()
		o := execute(t, socket, shRequest("true", `"detach":true`, `"id":"`+mark+`"`)).finish()
		if want := fmt.Sprintf("id %q is in use", mark); o.exit.Error != want || o.exit.ExitCode != 1 {
			t.Errorf("got %+v, want %q", o.exit, want)
		}
		x.eof()
		x.finish()
		if o := execute(t, socket, shRequest("exit 4", `"detach":true`, `"id":"`+mark+`"`)).finish(); o.exit.ExitCode != 4 {
			t.Errorf("got %+v, want the id to be free after the end", o.exit)
		}
	})
	t.Run("without a request for it nothing can be joined", func(t *testing.T) {
		mark := marker(t)
		x := execute(t, socket, shRequest("echo ready; cat", `"id":"`+mark+`"`))
		x.awaitOutput("ready")
		if o := attach(t, socket, mark).finish(); o.exit.ExitCode != 1 {
			t.Errorf("got %+v, want a refusal", o)
		}
		x.eof()
		x.finish()
	})
}

// Without a host the output gives way and nothing waits; with one that does not
// read, the process does.
func TestExecDetachedAlone(t *testing.T) {
	socket := startServer(t, agent.Options{})
	done := t.TempDir() + "/done"
	x := execute(t, socket, shRequest("read go; head -c 20000000 /dev/zero; echo done >"+done+"; cat", started, `"detach":true`))
	id := x.started().ID
	x.stdin("go\n")
	_ = x.Close()
	eventually(t, "20 MB are written", func() bool { _, err := os.Stat(done); return err == nil })
	y := attach(t, socket, id)
	y.eof()
	if o := y.finish(); o.exit.ExitCode != 0 || len(o.stdout) > 20000000 {
		t.Errorf("got %+v", o.exit)
	}
}

// T15: a thousand attaches and detaches leave no goroutine and no descriptor.
func TestExecAttachCycles(t *testing.T) {
	s := agent.NewServer(agent.Options{})
	t.Cleanup(func() { _ = s.Close() })
	socket := serveOn(t, s)
	x := execute(t, socket, shRequest("echo ready; cat", started, `"detach":true`))
	id := x.started().ID
	x.awaitOutput("ready")
	x.stdin("first") // what writes to a process begins with that
	x.awaitOutput("first")
	count := func() (goroutines, files int) {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return runtime.NumGoroutine(), len(entries)
	}
	goroutines, files := count()
	cycles := 1000
	if raceEnabled {
		cycles = 200
	}
	for i := range cycles {
		y := attach(t, socket, id, started, `"replay_from":0`)
		if i%2 == 0 {
			y.started()
			y.stdin("x")
		}
		_ = y.Close()
	}
	eventually(t, "goroutines and descriptors are as before", func() bool {
		g, f := count()
		return g <= goroutines && f <= files
	})
	x.eof()
	if o := x.finish(); o.exit.ExitCode != 0 {
		t.Errorf("got %+v", o.exit)
	}
}

// An ended process is forgotten after a while.
func TestExecDetachedIsForgotten(t *testing.T) {
	m := proc.NewManager(proc.Options{KeepEnded: 20 * time.Millisecond})
	t.Cleanup(m.Close)
	socket := startServer(t, agent.Options{Proc: m})
	x := execute(t, socket, shRequest("exit 3", started, `"detach":true`))
	id := x.started().ID
	x.finish()
	eventually(t, "it is forgotten", func() bool {
		return attach(t, socket, id).finish().exit.Error == fmt.Sprintf("no detached process has id %q", id)
	})
}
