package agent_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/agent"
)

// T15, 2.11 no. 1: a host that goes takes the command and all it started with it.
func TestExecDisconnectKills(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for _, c := range []struct{ name, script string }{
		{"command", "echo ready; exec sleep %s"},
		{"children", "sleep %[1]s & sleep %[1]s & echo ready; wait"},
		{"child in a session of its own", "setsid sleep %s & echo ready; wait"},
		{"deep tree", "sh -c 'setsid sh -c \"setsid sleep %s; :\"; :' & echo ready; wait"},
		{"that ignores signals", "trap '' TERM HUP INT PIPE; echo ready; sleep %s; while :; do sleep 1; done"},
		{"that is stopped (T14)", "sleep %s & echo ready; kill -STOP $$"},
		{"that writes for ever", "sleep %s & echo ready; yes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			each(t, func(t *testing.T, framing string) {
				mark := marker(t)
				script := strings.ReplaceAll(strings.ReplaceAll(c.script, "%[1]s", mark), "%s", mark)
				x := execute(t, socket, shRequest(script, framing))
				x.awaitOutput("ready")
				eventually(t, "the sleeper runs", func() bool { return running(t, mark) > 0 })
				_ = x.Close()
				awaitGone(t, mark)
			})
		})
	}
	t.Run("after a half-close", func(t *testing.T) {
		mark := marker(t)
		x := execute(t, socket, shRequest("cat; echo ready; exec sleep "+mark))
		x.shutDown()
		x.awaitOutput("ready")
		_ = x.Close()
		awaitGone(t, mark)
	})
	for name, before := range map[string]func(x *execution){
		"":                        func(*execution) {},
		" after a half-close":     func(x *execution) { x.shutDown() },
		" and the host with it":   func(x *execution) { _ = x.Close() },
		" behind unread stdin":    func(x *execution) { x.fill() },
		" behind unread output":   func(x *execution) { x.stdin("more\n") },
		" after a protocol error": func(x *execution) { x.input("nonsense") },
	} {
		t.Run("when the server closes"+name, func(t *testing.T) {
			s := agent.NewServer(agent.Options{})
			mark := marker(t)
			x := execute(t, serveOn(t, s), shRequest("sleep "+mark+" & echo ready; read line; [ -z \"$line\" ] || yes; wait"))
			x.awaitOutput("ready")
			before(x)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if n := running(t, mark); n != 0 {
				t.Errorf("%d processes are left after Close", n)
			}
		})
	}
}

// T13: a child in the background delays neither the exit frame nor dies of it.
func TestExecBackgroundChild(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		mark := marker(t)
		fifo := t.TempDir() + "/fifo"
		script := fmt.Sprintf("mkfifo %[1]s0 %[1]s1; sh -c 'read l <%[1]s0; echo more; echo more >&2; read l <%[1]s1' %[2]s & echo started", fifo, mark)
		// The child holds stdout until it is told to go on, after this.
		if o := execute(t, socket, shRequest(script, framing)).finish(); o.stdout != "started\n" || o.exit.ExitCode != 0 {
			t.Errorf("got %+v, want the output of the command itself and exit code 0", o)
		}
		for step := range 2 { // it reads again only if it has survived that it wrote
			eventually(t, fmt.Sprint("the child reads line ", step), func() bool {
				f, err := os.OpenFile(fmt.Sprint(fifo, step), os.O_WRONLY|unix.O_NONBLOCK, 0)
				if err != nil {
					return false
				}
				_, err = f.WriteString("go\n")
				return errors.Join(err, f.Close()) == nil
			})
		}
		awaitGone(t, mark)
	})
}

// T14: the timeout ends what does not want to end, and says so.
func TestExecTimeout(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		mark := marker(t)
		x := execute(t, socket, shRequest("trap '' TERM; setsid sleep "+mark+" & kill -STOP $$; wait", framing, `"timeout_ms":1500`, `"started":true`))
		if f := x.frame(); f.Type != "started" || f.PID == 0 {
			t.Errorf("got %+v, want a started frame", f)
		}
		o := x.finish()
		if want := (frame{Type: "exit", ExitCode: -1, Error: "timed out after 1.5s", Signal: 9, TimedOut: true}); fmt.Sprint(o.exit) != fmt.Sprint(want) {
			t.Errorf("got %+v, want %+v", o.exit, want)
		}
		awaitGone(t, mark)
	})
	t.Run("of a command whose output nobody reads (T09)", func(t *testing.T) {
		mark := marker(t)
		x := execute(t, socket, shRequest("sleep "+mark+" & yes", `"timeout_ms":300`))
		eventually(t, "start", func() bool { return running(t, mark) > 0 })
		awaitGone(t, mark)
		o := x.finish()
		if !strings.HasPrefix(o.exit.Error, "timed out") {
			t.Errorf("got %+v, want a timeout", o.exit)
		}
	})
}

// Extension signal: to the process group.
func TestExecSignal(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		t.Run("is handled", func(t *testing.T) {
			x := execute(t, socket, shRequest("trap 'echo caught; exit 3' USR1; echo ready; while :; do sleep 0.01; done", framing))
			x.awaitOutput("ready")
			x.input(`{"type":"signal","signal":10}`)
			if o := x.finish(); !strings.Contains(o.stdout, "caught") || o.exit.ExitCode != 3 {
				t.Errorf("got %+v, want the handler's exit", o)
			}
		})
		t.Run("ends the group", func(t *testing.T) {
			mark := marker(t)
			x := execute(t, socket, shRequest("sleep "+mark+" & echo ready; wait", framing, `"started":true`))
			pid := x.frame().PID
			x.awaitOutput("ready")
			x.input(`{"type":"signal","signal":15}`)
			o := x.finish()
			if o.exit.ExitCode != -1 || o.exit.Signal != 15 || o.exit.Error != "signal: terminated" || o.exit.TimedOut {
				t.Errorf("got %+v, want signal 15", o.exit)
			}
			if pid <= 0 {
				t.Errorf("started frame has pid %d", pid)
			}
			awaitGone(t, mark)
		})
	})
}

// T05, 2.11 no. 3: output without end takes no memory, with a fast reader and with
// one that stops (T09). 1 GiB stands for the 10 of the catalogue.
func TestExecMuchOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("moves 1 GiB; run without -short")
	}
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		total := int64(1 << 30)
		switch lines := framing != `"framing":"binary"`; {
		case lines && raceEnabled:
			total = 16 << 20
		case lines || raceEnabled:
			total = 128 << 20
		}
		heap := watchHeap(t)
		x := execute(t, socket, shRequest(fmt.Sprintf("yes | head -c %d; sleep 0.2; exit 4", total), framing))
		var got int64
		checked := false
		for {
			f := x.frame()
			if f.Type == "exit" {
				if f.ExitCode != 4 {
					t.Errorf("got %+v, want exit code 4", f)
				}
				break
			}
			got += int64(len(f.Data))
			if !checked && got >= total/2 {
				heap.check("in the middle")
				checked = true
			}
		}
		if got != total {
			t.Errorf("got %d bytes, want %d", got, total)
		}
		heap.check("at the end")
	})
}

type heapWatch struct {
	t      testing.TB
	before uint64
}

func watchHeap(t testing.TB) *heapWatch { return &heapWatch{t, liveHeap()} }

func liveHeap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// check fails if much more is live than at first.
func (h *heapWatch) check(when string) {
	h.t.Helper()
	if now := liveHeap(); now > h.before+16<<20 {
		h.t.Errorf("%s: the heap grew from %d to %d bytes", when, h.before, now)
	}
}

// T09: a reader that stops holds back its own command only, which goes on when it
// reads again, and no memory is taken.
func TestExecStoppedReader(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		count := t.TempDir() + "/count"
		heap := watchHeap(t)
		x := execute(t, socket, shRequest("for i in 1 2 3 4 5 6 7 8 9 10; do head -c 1000000 /dev/zero; echo $i >"+count+"; done", framing))
		// The writer is stuck when it does not get further; nothing tells of that.
		last, same := "", 0
		eventually(t, "the command is held back", func() bool {
			b, _ := os.ReadFile(count)
			if string(b) == last {
				same++
			} else {
				last, same = string(b), 0
			}
			return same > 100
		})
		if last == "10\n" {
			t.Fatal("10 MB were taken of a command whose output nobody reads")
		}
		heap.check("while the reader is stopped")
		if o := execute(t, socket, shRequest("echo other")).finish(); o.stdout != "other\n" {
			t.Errorf("another command: got %+v", o)
		}
		if o := x.finish(); len(o.stdout) != 10_000_000 || o.exit.ExitCode != 0 {
			t.Errorf("got %d bytes and %+v, want 10,000,000 and 0", len(o.stdout), o.exit)
		}
	})
}

// The exit frame comes once, last, at once, and whatever came right before it.
func TestExecOutputBeforeExit(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		for range 50 {
			o := execute(t, socket, shRequest("head -c 65536 /dev/zero; head -c 1000 /dev/zero >&2; kill -9 $$", framing)).finish()
			if len(o.stdout) != 65536 || len(o.stderr) != 1000 || o.exit.ExitCode != -1 {
				t.Fatalf("got %d and %d bytes, %+v", len(o.stdout), len(o.stderr), o.exit)
			}
		}
	})
}

// A host that does not close its end after the exit frame is not waited for long.
func TestExecHostThatStays(t *testing.T) {
	socket := startServer(t, agent.Options{})
	x := execute(t, socket, `{"command":["true"]}`)
	start := time.Now()
	x.finish()
	eventually(t, "the agent closes its end", func() bool {
		_, err := x.Write([]byte("{}\n"))
		return err != nil
	})
	if d := time.Since(start); d > patience/2 {
		t.Errorf("took %v", d)
	}
}

// T15: a thousand sessions that end early leave nothing, which the ledger checks.
func TestExecManyDisconnects(t *testing.T) {
	socket := startServer(t, agent.Options{})
	mark := marker(t)
	cycles := 1000
	if raceEnabled {
		cycles = 100
	}
	for i := range cycles {
		x := execute(t, socket, `{"command":["sleep","`+mark+`"]}`)
		if i%2 == 0 {
			x.send(`{"type":"stdin","data":"aGk="}` + "\n")
		}
		_ = x.Close()
	}
	awaitGone(t, mark)
}
