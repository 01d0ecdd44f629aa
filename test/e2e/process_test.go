package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
)

// T12: the end of input ends cat; a second end means nothing; data after it breaks
// that command and no other.
func TestEndOfInput(t *testing.T) {
	s := box(t, bouvet.Config{})
	stdin := string(wire.AppendDataFrame(nil, wire.FrameTypeStdin, []byte("in")))
	const request, eof = `{"command":["cat"]}` + "\n", `{"type":"eof"}` + "\n"
	for _, tt := range []struct{ name, send, stdout string }{
		{"once", request + stdin + eof, "in"},
		{"twice", request + stdin + eof + eof, "in"},
		{"empty", request + eof, ""},
	} {
		conn := dial(t, s, wire.PortExec)
		if _, err := io.WriteString(conn, tt.send); err != nil {
			t.Fatal(err)
		}
		if stdout, _, exit := frames(t, bufio.NewReader(conn)); string(stdout) != tt.stdout || exit.ExitCode != 0 || exit.Error != "" {
			t.Errorf("%s: got %q and %+v, want %q and exit 0", tt.name, stdout, exit, tt.stdout)
		}
	}
	other := s.Command(timed(t), "cat")
	pipe, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	conn := dial(t, s, wire.PortExec)
	if _, err := io.WriteString(conn, strings.Replace(request, "cat", "sleep\",\"4711", 1)+eof+stdin); err != nil {
		t.Fatal(err)
	}
	if _, _, exit := frames(t, bufio.NewReader(conn)); exit.ExitCode == 0 || exit.Error == "" {
		t.Errorf("data after the end: got %+v, want an error", exit)
	}
	if err := pipe.Close(); err != nil {
		t.Error(err)
	}
	if err := other.Wait(); err != nil {
		t.Errorf("another command: %v", err)
	}
}

// T13: a child that daemonises and keeps the output open delays nothing.
func TestDaemon(t *testing.T) {
	s := box(t, bouvet.Config{})
	for name, run := range map[string]func(script string) (string, error){
		"stream": func(script string) (string, error) {
			out, err := s.Command(timed(t), "sh", "-c", script).Output()
			return string(out), err
		},
		"call": func(script string) (string, error) {
			r, err := s.Execute(timed(t), script)
			if err != nil {
				return "", err
			}
			return r.Stdout, nil
		},
	} {
		for _, script := range []string{
			"echo up; sleep 4711 &",
			"echo up; setsid sleep 4711 &",
			"echo up; (setsid sh -c 'sleep 4711 & sleep 4711' &)",
			"echo up; python3 -c 'import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(4711)'",
		} {
			begin := time.Now()
			out, err := run(script)
			if err != nil || out != "up\n" {
				t.Errorf("%s: %s: got %q, %v", name, script, out, err)
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("%s: %s: took %v", name, script, took)
			}
		}
	}
	answers(t, s)
}

// T14: what a timeout ends does not have to agree, and nor does what it started.
func TestTimeoutEndsAll(t *testing.T) {
	s := box(t, bouvet.Config{})
	for name, script := range map[string]string{
		"ignores signals":    "trap '' TERM HUP INT QUIT; while :; do sleep 0.1; done",
		"is stopped":         "kill -STOP $$",
		"child ignores them": "sh -c \"trap '' TERM HUP; sleep 4711\" & wait",
		"left the session":   "setsid sleep 4711 & wait",
		"many":               "for i in $(seq 20); do sleep 4711 & done; wait",
		"stops its children": "sleep 4711 & kill -STOP $!; wait",
	} {
		c := s.Command(timed(t), "sh", "-c", script)
		c.Timeout = 300 * time.Millisecond
		if err := c.Run(); !errors.Is(err, bouvet.ErrTimedOut) {
			t.Errorf("%s: got %v, want ErrTimedOut", name, err)
		}
		if _, err := s.Client().Exec(timed(t), script, &bouvet.ExecOptions{Timeout: 300 * time.Millisecond}); !errors.Is(err, bouvet.ErrTimedOut) {
			t.Errorf("%s: over JSON-RPC: got %v, want ErrTimedOut", name, err)
		}
	}
	eventually(t, "nothing of it is left", func() bool { return sh(t, s, "pgrep -c 'sleep|sh' -v -P 0 >/dev/null; pgrep sleep | wc -l") == "0" })
}

// T15: attaching to a command and leaving it, again and again, costs nothing that
// stays, here or in the guest.
func TestAttachCycles(t *testing.T) {
	s := box(t, bouvet.Config{})
	c := s.Command(timed(t), "sh", "-c", "while :; do echo tick; sleep 0.01; done")
	c.Detach, c.ID = true, "ticker"
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Release(); err != nil {
		t.Fatal(err)
	}
	attach := func() {
		t.Helper()
		a := s.Attach(timed(t), "ticker", 0)
		out, err := a.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "tick\n" {
			t.Fatalf("got %q, %v", line, err)
		}
		if err := a.Release(); err != nil {
			t.Fatal(err)
		}
		_ = a.Wait()
	}
	guestFDs := func() int64 { return atoi(t, sh(t, s, "ls /proc/1/fd | wc -l")) }
	for range 10 {
		attach()
	}
	goroutines, fds, theirs := runtime.NumGoroutine(), openFiles(t), guestFDs()
	for range 200 {
		attach()
	}
	// A little may be on its way out.
	eventually(t, "goroutines are as many as before", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	eventually(t, "descriptors are as many as before", func() bool { return openFiles(t) <= fds })
	eventually(t, "the agent's descriptors are as many as before", func() bool { return guestFDs() <= theirs+1 })
	if err := s.Client().Signal(timed(t), wire.SignalParams{ID: "ticker", Signal: 9, Group: true}); err != nil {
		t.Error(err)
	}
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// T15: connections that break at any point of an exec leave nothing behind.
func TestConnectionsCut(t *testing.T) {
	s := box(t, bouvet.Config{})
	for i := range 60 {
		conn := dial(t, s, wire.PortExec)
		text := `{"command":["sh","-c","yes & sleep 4711"],"tty":` + fmt.Sprint(i%12 < 6) + "}\n"
		if _, err := io.WriteString(conn, text[:len(text)*(1+i%6)/6]); err != nil {
			t.Fatal(err)
		}
		if i%6 == 5 && i%18 != 5 {
			_, _ = conn.Read(make([]byte, 10)) // a part of the first frame
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all commands are gone", func() bool { return sh(t, s, "pgrep 'yes|sleep' | wc -l") == "0" })
	answers(t, s)
}

// T16: nobody gets another's exit status, however many there are.
func TestManyCommands(t *testing.T) {
	s := box(t, bouvet.Config{})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			if i%2 == 0 {
				err := s.Command(timed(t), "sh", "-c", "exit "+itoa(i)).Run()
				exit, _ := errors.AsType[*bouvet.ExitError](err)
				if (exit == nil && (i != 0 || err != nil)) || (exit != nil && exit.Code != i) {
					t.Errorf("command %d: %v", i, err)
				}
				return
			}
			if r, err := s.Execute(timed(t), "exit "+itoa(i)); err != nil || int(r.ExitCode) != i {
				t.Errorf("call %d: got %+v, %v", i, r, err)
			}
		})
	}
	all.Wait()
	if all, err := s.Client().Processes(timed(t)); err != nil || len(all) != 0 {
		t.Errorf("the agent still knows %+v, %v", all, err)
	}
}

// T16: zombies that the agent inherits are reaped, and do not confuse it.
func TestZombies(t *testing.T) {
	count := 5000
	if testing.Short() {
		count = 500
	}
	s := box(t, bouvet.Config{MemoryMiB: 512})
	ctx, cancel := context.WithCancel(timed(t))
	defer cancel()
	// In the background, commands go on ending with their own status.
	var busy sync.WaitGroup
	busy.Go(func() {
		for i := 0; ctx.Err() == nil; i = (i + 1) % 200 {
			if r, err := s.Execute(context.WithoutCancel(ctx), "exit "+itoa(i)); err != nil || int(r.ExitCode) != i {
				t.Errorf("call %d: got %+v, %v", i, r, err)
				return
			}
		}
	})
	// The children end, nobody waits for them, and their parent leaves them to init.
	sh(t, s, "for p in 1 2 3 4 5 6 7 8 9 10; do sh -c 'i=0; while [ $i -lt "+itoa(count/10)+" ]; do (exit 3) & i=$((i+1)); done' & done; wait")
	cancel()
	busy.Wait()
	eventually(t, "no zombie is left", func() bool { return sh(t, s, "grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l") == "0" })
	answers(t, s)
}
