package agent_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
)

const tty = `"tty":true`

// J4, J5: a terminal of 80x24 or the size asked for, stdout and stderr together.
func TestExecTTY(t *testing.T) {
	socket := startServer(t, agent.Options{})
	each(t, func(t *testing.T, framing string) {
		for _, c := range []struct{ name, request, stdout string }{
			{"is a terminal", shRequest("test -t 0 && test -t 1 && test -t 2 && echo yes", tty, framing), "yes\r\n"},
			{"is the controlling one", shRequest("echo yes >/dev/tty", tty, framing), "yes\r\n"},
			{"merges stderr", shRequest("echo a; echo b >&2; echo c", tty, framing), "a\r\nb\r\nc\r\n"},
			{"first size", shRequest("stty size", tty, framing), "24 80\r\n"},
			{"size asked for", shRequest("stty size", tty, framing, `"cols":132,"rows":50`), "50 132\r\n"},
			{"TERM", shRequest("echo $TERM", tty, framing, `"env":["TERM=dumb"]`), "dumb\r\n"},
			{"no stdin", shRequest("cat; echo end", tty, framing, `"no_stdin":true`), "end\r\n"},
			{"user owns it", shRequest("stat -c %u $(tty); id -u", tty, framing, `"user":"65534"`), "65534\r\n65534\r\n"},
		} {
			t.Run(c.name, func(t *testing.T) {
				if o := execute(t, socket, c.request).finish(); o.stdout != c.stdout || o.stderr != "" || o.exit.ExitCode != 0 {
					t.Errorf("got %+v, want stdout %q", o, c.stdout)
				}
			})
		}
		t.Run("resize (J5)", func(t *testing.T) {
			x := execute(t, socket, shRequest("trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.01; done", tty, framing))
			x.awaitOutput("ready")
			x.input(`{"type":"resize","cols":0,"rows":9}`) // no size at all
			x.input(`{"type":"resize","cols":100,"rows":41}`)
			if o := x.finish(); !strings.Contains(o.stdout, "41 100") {
				t.Errorf("got %+v, want 41 100", o)
			}
		})
		t.Run("eof ends cat and loses nothing", func(t *testing.T) {
			for _, text := range []string{"", "whole line\n", "part of a line"} {
				x := execute(t, socket, shRequest("stty -echo; echo ready; cat; echo end", tty, framing))
				x.awaitOutput("ready\r\n")
				x.stdin(text)
				x.eof()
				want := strings.ReplaceAll(text, "\n", "\r\n") + "end\r\n"
				if o := x.finish(); o.stdout != want || o.exit.ExitCode != 0 {
					t.Errorf("%q: got %+v, want %q and exit code 0", text, o, want)
				}
			}
		})
		t.Run("eof means nothing to a program that reads keys", func(t *testing.T) {
			// cat ends when nothing has come for half a second.
			x := execute(t, socket, shRequest("stty raw -echo min 0 time 5; echo ready; cat | od -An -c", tty, framing))
			x.awaitOutput("ready")
			x.stdin("a")
			x.eof()
			if o := x.finish(); strings.Join(strings.Fields(o.stdout), " ") != "a" {
				t.Errorf("got %+v, want one key, a", o)
			}
		})
		t.Run("^C as a byte and as a signal", func(t *testing.T) {
			for name, interrupt := range map[string]func(x *execution){
				"byte": func(x *execution) { x.stdin("\x03") }, "signal": func(x *execution) { x.input(`{"type":"signal","signal":2}`) },
			} {
				mark := marker(t)
				x := execute(t, socket, shRequest("echo ready; exec sleep "+mark, tty, framing))
				x.awaitOutput("ready")
				eventually(t, "sleep runs", func() bool { return running(t, mark) == 1 })
				interrupt(x)
				if o := x.finish(); o.exit.ExitCode != -1 || o.exit.Error != "signal: interrupt" {
					t.Errorf("%s: got %+v, want an interrupt", name, o.exit)
				}
				awaitGone(t, mark)
			}
		})
		t.Run("large output right before the end", func(t *testing.T) {
			for range 20 {
				o := execute(t, socket, shRequest("stty -opost; head -c 200000 /dev/zero | tr '\\0' x", tty, framing)).finish()
				if len(o.stdout) != 200000 || o.exit.ExitCode != 0 {
					t.Fatalf("got %d bytes, want 200000; %+v", len(o.stdout), o.exit)
				}
			}
		})
		t.Run("background child (T13)", func(t *testing.T) {
			mark := marker(t)
			o := execute(t, socket, shRequest("setsid sleep "+mark+" & echo started", tty, framing)).finish()
			if o.exit.ExitCode != 0 || o.exit.Error != "" {
				t.Errorf("got %+v, want an end at once", o)
			}
			if o := execute(t, socket, `{"command":["pkill","-9","-f","^sleep `+mark+`"]}`).finish(); o.exit.ExitCode > 1 {
				t.Errorf("pkill: %+v", o)
			}
			awaitGone(t, mark)
		})
		t.Run("closed and opened again", func(t *testing.T) {
			o := execute(t, socket, shRequest("echo one; exec 3>&1 </dev/null >/dev/null 2>&1; exec 3>&-; sleep 0.2; echo two >/dev/tty", tty, framing)).finish()
			if o.stdout != "one\r\ntwo\r\n" {
				t.Errorf("got %+v, want both lines", o)
			}
		})
		t.Run("disconnect kills", func(t *testing.T) {
			mark := marker(t)
			x := execute(t, socket, shRequest("trap '' HUP; setsid sleep "+mark+" & echo ready; wait", tty, framing))
			x.awaitOutput("ready")
			eventually(t, "sleep runs", func() bool { return running(t, mark) == 1 })
			_ = x.Close()
			awaitGone(t, mark)
		})
	})
}

// Job control: bash runs each job in a group of its own.
func TestExecTTYJobControl(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for name, interrupt := range map[string]func(x *execution){
		"byte": func(x *execution) { x.stdin("\x03") }, "signal": func(x *execution) { x.input(`{"type":"signal","signal":2}`) },
	} {
		t.Run("^C as a "+name, func(t *testing.T) {
			mark := marker(t)
			x := execute(t, socket, `{"command":["bash","--norc","--noprofile","-i"],"tty":true,"env":["PS1=prompt> ","TERM=dumb"]}`)
			x.awaitOutput("prompt> ")
			x.stdin("sleep " + mark + "\n")
			eventually(t, "the job runs", func() bool { return running(t, mark) == 1 })
			interrupt(x)
			x.awaitOutput("prompt> ")
			awaitGone(t, mark)
			x.stdin(fmt.Sprintf("set -m; sleep %s &\n", mark))
			x.awaitOutput("prompt> ")
			x.stdin("kill %1; wait; echo code $((40+2)); exit 5\n")
			if o := x.finish(); !strings.Contains(o.stdout, "code 42") || o.exit.ExitCode != 5 {
				t.Errorf("got %+v, want the shell to live on and to exit with 5", o)
			}
			awaitGone(t, mark)
		})
	}
}

// T11: input that nobody reads from a terminal holds up neither output nor end.
func TestExecTTYUnreadStdin(t *testing.T) {
	socket := startServer(t, agent.Options{})
	x := execute(t, socket, shRequest("stty raw -echo; echo ready; sleep 0.3; echo end; exit 6", tty))
	x.awaitOutput("ready")
	for range 20 {
		x.stdin(strings.Repeat("x", 30000))
	}
	x.eof()
	if o := x.finish(); !strings.Contains(o.stdout, "end") || o.exit.ExitCode != 6 {
		t.Errorf("got %+v, want exit code 6", o)
	}
}
