package agent_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
)

// each runs a test with both framings.
func each(t *testing.T, f func(t *testing.T, field string)) {
	t.Run("lines", func(t *testing.T) { f(t, `"framing":""`) })
	t.Run("binary", func(t *testing.T) { f(t, `"framing":"binary"`) })
}

// J5, J6, T12: stdin, its end, a duplicate of that, and data after it.
func TestExecStdin(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		t.Run("eof ends cat (T12)", func(t *testing.T) {
			x := execute(t, socket, shRequest("cat", framing))
			x.stdin("one ")
			x.stdin("two")
			x.eof()
			x.eof()
			if o := x.finish(); o.stdout != "one two" || o.exit.ExitCode != 0 || o.exit.Error != "" {
				t.Errorf("got %+v, want what was sent and exit code 0", o)
			}
		})
		t.Run("half-close is eof", func(t *testing.T) {
			x := execute(t, socket, shRequest("cat; sleep 0.1; echo end", framing))
			x.stdin("data")
			x.shutDown()
			if o := x.finish(); o.stdout != "dataend\n" || o.exit.ExitCode != 0 {
				t.Errorf("got %+v, want the data and what comes after its end", o)
			}
		})
		t.Run("data after eof (T12)", func(t *testing.T) {
			mark := marker(t)
			x := execute(t, socket, shRequest("cat; exec sleep "+mark, framing))
			x.eof()
			x.stdin("late")
			if o := x.finish(); o.exit.ExitCode != -1 || o.exit.Error != "protocol error: stdin data after eof" {
				t.Errorf("got %+v, want a protocol error", o)
			}
			awaitGone(t, mark)
		})
		t.Run("no stdin unless piped", func(t *testing.T) {
			x := execute(t, socket, shRequest("cat; readlink /proc/self/fd/0", framing, `"no_stdin":true`))
			if o := x.finish(); o.stdout != "/dev/null\n" {
				t.Errorf("got %+v, want /dev/null", o)
			}
		})
		t.Run("to a process that has closed it", func(t *testing.T) {
			x := execute(t, socket, shRequest("exec 0</dev/null; echo ready; sleep 0.1; echo end", framing))
			x.awaitOutput("ready")
			x.stdin(strings.Repeat("x", 100000))
			x.stdin("y")
			if o := x.finish(); !strings.Contains(o.stdout, "end") || o.exit.ExitCode != 0 || o.exit.Error != "" {
				t.Errorf("got %+v, want no error", o)
			}
		})
	})
}

// J5, J7, L19, 2.9 rule 2, T17.
func TestExecInputFrames(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for _, c := range []struct{ name, input, stdout, problem string }{
		{"plain string is data (J7, L19)", `{"type":"stdin","data":"not base64!"}`, "not base64!", ""},
		{"empty data", `{"type":"stdin","data":""}`, "", ""},
		{"no data", `{"type":"stdin"}`, "", ""},
		{"type in other case and spaces", `{"type":" STDIN ","data":"aGk="}`, "hi", ""},
		{"unknown type is ignored", `{"type":"frobnicate","data":[1]}`, "", ""},
		{"resize without a terminal", `{"type":"resize","cols":10,"rows":10}`, "", ""},
		{"resize beyond all bounds", `{"type":"resize","cols":700000,"rows":-1}`, "", ""},
		{"no such signal", `{"type":"signal","signal":4711}`, "", ""},
		{"second request is ignored", `{"command":["false"],"type":"request"}`, "", ""},
		{"blank line", ` `, "", ""},
		{"unknown fields", `{"type":"stdin","data":"aGk=","seq":7}`, "hi", ""},
		{"not JSON", `nonsense`, "", "protocol error: "},
		{"not an object", `[]`, "", "protocol error: "},
		{"no type", `{"data":"aGk="}`, "", ""},
		{"data is no string", `{"type":"stdin","data":5}`, "", "protocol error: "},
		{"a key twice", `{"type":"stdin","type":"eof"}`, "", "protocol error: "},
		{"invalid UTF-8", "{\"type\":\"stdin\",\"data\":\"\xff\"}", "", "protocol error: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := execute(t, socket, `{"command":["cat"]}`)
			x.send(c.input + "\n")
			x.eof()
			o := x.finish()
			wantCode := 0
			if c.problem != "" {
				wantCode = -1
			}
			if o.stdout != c.stdout || o.exit.ExitCode != wantCode || !strings.HasPrefix(o.exit.Error, c.problem) || (c.problem == "") != (o.exit.Error == "") {
				t.Errorf("got %+v, want stdout %q and error %q", o, c.stdout, c.problem)
			}
		})
	}
	t.Run("T18 binary frames that are none", func(t *testing.T) {
		for name, bytes := range map[string]string{
			"unknown kind": "\x77\x00\x00\x00\x00", "4 GiB": "\x01\xff\xff\xff\xff", "bad control": "\x04\x00\x00\x00\x01x",
		} {
			x := execute(t, socket, `{"command":["cat"],"framing":"binary"}`)
			x.send(bytes)
			if o := x.finish(); o.exit.ExitCode != -1 || !strings.HasPrefix(o.exit.Error, "protocol error: ") {
				t.Errorf("%s: got %+v, want a protocol error", name, o)
			}
		}
		for _, part := range []string{"\x01", "\x01\x00\x00\x00", "\x01\x00\x00\x00\x05ab"} {
			x := execute(t, socket, `{"command":["cat"],"framing":"binary"}`)
			x.send(part)
			x.shutDown()
			if o := x.finish(); o.exit.ExitCode != -1 || !strings.HasPrefix(o.exit.Error, "protocol error: ") {
				t.Errorf("truncated after %d bytes: got %+v, want a protocol error", len(part), o)
			}
		}
	})
}

// J9, T10: bytes of every kind go through both ways at once and unchanged.
func TestExecFullDuplex(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		x := execute(t, socket, shRequest("cat", framing))
		piece := make([]byte, 60000)
		for i := range piece {
			piece[i] = byte(i * i / 251) // all values, newlines and NUL among them
		}
		pieces := 100
		if raceEnabled {
			pieces = 20
		}
		var sender sync.WaitGroup
		sender.Go(func() {
			for range pieces {
				x.stdin(string(piece))
			}
			x.eof()
		})
		o := x.finish()
		sender.Wait()
		got, want := sha256.Sum256([]byte(o.stdout)), sha256.Sum256(bytes.Repeat(piece, pieces))
		if got != want {
			t.Errorf("%d bytes came back, not the %d that were sent", len(o.stdout), pieces*len(piece))
		}
	})
}

// T11: a process that does not read its stdin holds up neither its own output nor
// its end, and takes a bounded amount of memory.
func TestExecUnreadStdin(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		x := execute(t, socket, shRequest("read first; echo got $first; sleep 0.3; echo end; exit 7", framing))
		x.stdin("line\n")
		var sender sync.WaitGroup
		stopped := make(chan int, 1)
		sender.Go(func() {
			// Until the agent has ended the connection: it takes only so much.
			n := 0
			for ; n < 1<<10; n++ {
				if _, err := x.Write(stdinFrame(x, 1<<20)); err != nil {
					break
				}
			}
			stopped <- n
		})
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		x.awaitOutput("end")
		var during runtime.MemStats
		runtime.ReadMemStats(&during)
		f := x.frame()
		if f.Type != "exit" || f.ExitCode != 7 {
			t.Errorf("got %+v, want exit code 7", f)
		}
		_ = x.Close()
		sender.Wait()
		if n := <-stopped; n == 1<<10 {
			t.Error("1 GiB of stdin was taken for a process that reads nothing")
		}
		if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 32<<20 {
			t.Errorf("the heap grew by %d bytes", grown)
		}
	})
}

func stdinFrame(x *execution, n int) []byte {
	data := bytes.Repeat([]byte("x"), n)
	if x.binary {
		return append([]byte{1, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, data...)
	}
	return []byte(`{"type":"stdin","data":"` + b64(string(data)) + "\"}\n")
}

// T11, T15: a host that leaves while its stdin is stuck takes the command with it.
func TestExecDisconnectBehindUnreadStdin(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		mark := marker(t)
		x := execute(t, socket, shRequest("echo ready; exec sleep "+mark, framing))
		x.awaitOutput("ready")
		var sender sync.WaitGroup
		sender.Go(func() {
			for {
				if _, err := x.Write(stdinFrame(x, 1<<20)); err != nil {
					return
				}
			}
		})
		eventually(t, "the sender is stuck", func() bool { return x.stuck() })
		_ = x.Close()
		sender.Wait()
		awaitGone(t, mark)
	})
}

// L22, T16: many commands at once, each with its own result.
func TestExecConcurrent(t *testing.T) {
	socket := startServer(t, agent.Options{})
	hung := execute(t, socket, `{"command":["cat"]}`) // a hung command holds nobody up
	var runs sync.WaitGroup
	for i := range 200 {
		runs.Go(func() {
			script := fmt.Sprintf("printf %d; exit %d", i, i%100)
			if o := execute(t, socket, shRequest(script)).finish(); o.stdout != fmt.Sprint(i) || o.exit.ExitCode != i%100 {
				t.Errorf("command %d: got %+v", i, o)
			}
		})
	}
	runs.Wait()
	hung.eof()
	if o := hung.finish(); o.exit.ExitCode != 0 {
		t.Errorf("hung command: got %+v", o)
	}
}
