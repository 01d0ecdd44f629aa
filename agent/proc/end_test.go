package proc

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// marker is an argument that no other process has.
func marker(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("31%08d.%d", os.Getpid(), time.Now().UnixNano()%1e9)
}

// T14, T15: everything a process started ends with it, whatever it did against that.
func TestKill(t *testing.T) {
	m := newManager(t, Options{})
	for _, c := range []struct{ name, script string }{
		{"child", "sleep MARK & echo ready; wait"},
		{"in a session of its own", "setsid sleep MARK & echo ready; wait"},
		{"below one in a session of its own", "setsid sh -c 'setsid sleep MARK; :' & echo ready; wait"},
		{"orphan in the session", "(sleep MARK &); echo ready; sleep 600"},
		{"signals ignored", "trap '' TERM INT HUP; sleep MARK & echo ready; wait"},
		{"stopped", "sleep MARK & echo ready; kill -STOP $$"},
		{"stopped child", "setsid sh -c 'kill -STOP $$; sleep MARK' MARK & echo ready; wait"},
		{"that forks on and on", "f() { (sleep 0.002; f) & }; f; f; f; echo ready; : MARK; sleep 600"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mark := marker(t)
			p := start(t, m, Spec{Args: sh(strings.ReplaceAll(c.script, "MARK", mark))})
			line := make([]byte, len("ready\n"))
			if _, err := io.ReadFull(p.Stdout(), line); err != nil {
				t.Fatal(err)
			}
			var kills sync.WaitGroup
			for range 3 { // also at once
				kills.Go(p.Kill)
			}
			kills.Wait()
			if left := living(mark); len(left) > 0 {
				t.Errorf("processes are left after Kill: %v", left)
			}
			readAll(t, p.Stdout())
			readAll(t, p.Stderr())
			await(t, p)
			if got, want := p.Status(), (Status{ExitCode: -1, Signal: 9}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
			p.Kill() // does nothing any more
		})
	}
}

// T13: the output ends with the process, and holds all it wrote, while a
// background child goes on and may go on writing.
func TestBackgroundChild(t *testing.T) {
	m := newManager(t, Options{})
	t.Run("that is silent", func(t *testing.T) {
		mark := marker(t)
		stdout, stderr, status := run(t, m, Spec{Args: sh("sleep " + mark + " & echo out; echo err >&2; exit 2")})
		if stdout != "out\n" || stderr != "err\n" || status.ExitCode != 2 {
			t.Errorf("got %q, %q, %+v", stdout, stderr, status)
		}
		endChild(t, "sleep", mark)
	})
	t.Run("that writes for ever", func(t *testing.T) {
		mark := marker(t)
		stdout, _, _ := run(t, m, Spec{Args: sh("yes " + mark + " & head -c 30000 /dev/zero")})
		if got := strings.Count(stdout, "\x00"); got != 30000 {
			t.Errorf("got %d bytes of the command itself, want 30000", got)
		}
		// It is not held up either: it has written more than any pipe holds.
		eventually(t, "the child writes on", func() bool {
			pids := living("yes\x00" + mark)
			return len(pids) == 1 && written(t, pids[0]) > 4<<20
		})
		endChild(t, "yes", mark)
	})
	t.Run("what is left in the pipe is read", func(t *testing.T) {
		mark := marker(t)
		p := start(t, m, Spec{Args: sh("sleep " + mark + " & head -c 60000 /dev/zero")})
		await(t, p)
		if got := len(readAll(t, p.Stdout())); got != 60000 {
			t.Errorf("got %d bytes, want 60000", got)
		}
		readAll(t, p.Stderr())
		endChild(t, "sleep", mark)
	})
}

// endChild ends a background child, which there must be: it has survived.
func endChild(t testing.TB, program, mark string) {
	t.Helper()
	var pids []int
	eventually(t, "the background child is there", func() bool {
		pids = living(program + "\x00" + mark)
		return len(pids) == 1
	})
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Error(err)
	}
	eventually(t, "it is gone", func() bool { return len(living(mark)) == 0 })
}

// written returns how much a process has written so far.
func written(t testing.TB, pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatalf("cannot read what it wrote: %v", err)
	}
	var read, wrote int
	if _, err := fmt.Sscanf(string(b), "rchar: %d\nwchar: %d", &read, &wrote); err != nil {
		t.Fatal(err)
	}
	return wrote
}

// T11: a writer that waits is woken by the end of the process and by Close, also
// when a child holds the other end.
func TestStdinWriterIsWoken(t *testing.T) {
	m := newManager(t, Options{})
	for _, tty := range []bool{false, true} {
		setup := ""
		if tty {
			setup = "stty raw -echo; "
		}
		t.Run(fmt.Sprintf("tty=%t/end", tty), func(t *testing.T) {
			mark := marker(t)
			p := start(t, m, Spec{Args: sh(setup + "trap '' HUP; sleep " + mark + " & echo ready; sleep 0.2"), Stdin: true, TTY: tty})
			if _, err := io.ReadFull(p.Stdout(), make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Stdin().Write(make([]byte, 10<<20)); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("got %v, want EPIPE", err)
			}
			if _, err := p.Stdin().Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("after the end: got %v, want EPIPE", err)
			}
			if err := p.Stdin().Close(); err != nil {
				t.Errorf("Close after the end: %v", err)
			}
			readAll(t, p.Stdout())
			if !tty {
				readAll(t, p.Stderr())
			}
			await(t, p)
			endChild(t, "sleep", mark)
		})
		t.Run(fmt.Sprintf("tty=%t/Close", tty), func(t *testing.T) {
			p := start(t, m, Spec{Args: sh(setup + "echo ready; sleep 600"), Stdin: true, TTY: tty})
			if _, err := io.ReadFull(p.Stdout(), make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			failed := make(chan error, 1)
			go func() {
				_, err := p.Stdin().Write(make([]byte, 10<<20))
				failed <- err
			}()
			if err := p.Stdin().Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if err := <-failed; !errors.Is(err, os.ErrClosed) {
				t.Errorf("got %v, want %v", err, os.ErrClosed)
			}
			p.Kill()
			readAll(t, p.Stdout())
			if !tty {
				readAll(t, p.Stderr())
			}
		})
	}
}

// A feed holds nobody up until it is full, and then until there is room.
func TestFeed(t *testing.T) {
	m := newManager(t, Options{})
	t.Run("is bounded and can be left", func(t *testing.T) {
		p := start(t, m, Spec{Args: []string{"sleep", "600"}, Stdin: true})
		piece := make([]byte, 100_000)
		n := 0
		for ; n < 100; n++ {
			if ok, err := p.Feed().TryPut(piece); err != nil {
				t.Fatal(err)
			} else if !ok {
				break
			}
		}
		if got := n * len(piece); got < MaxFeed || got > MaxFeed+2*len(piece)+1<<20 {
			t.Errorf("%d bytes were taken, want about %d", got, MaxFeed)
		}
		abort := make(chan struct{})
		close(abort)
		if err := p.Feed().Put(piece, abort); !errors.Is(err, ErrAborted) {
			t.Errorf("got %v, want %v", err, ErrAborted)
		}
		put := make(chan error, 1)
		go func() { put <- p.Feed().Put(piece, nil) }()
		p.Kill()
		if err := <-put; err != nil {
			t.Errorf("after the end of the process: got %v, want nil", err)
		}
		if got := p.Feed().Pending(); got > 0 {
			eventually(t, "nothing is kept", func() bool { return p.Feed().Pending() == 0 })
		}
		readAll(t, p.Stdout())
		readAll(t, p.Stderr())
	})
	t.Run("writes in order, then ends", func(t *testing.T) {
		p := start(t, m, Spec{Args: []string{"cat"}, Stdin: true})
		var want strings.Builder
		for i := range 1000 {
			piece := fmt.Sprintln("piece", i)
			want.WriteString(piece)
			if err := p.Feed().Put([]byte(piece), nil); err != nil {
				t.Fatal(err)
			}
		}
		p.Feed().End()
		p.Feed().End()
		if err := p.Feed().Put([]byte("x"), nil); !errors.Is(err, ErrAfterEOF) {
			t.Errorf("after the end: got %v, want %v", err, ErrAfterEOF)
		}
		if got := readAll(t, p.Stdout()); got != want.String() {
			t.Errorf("got %d bytes, not the %d that were put", len(got), want.Len())
		}
		readAll(t, p.Stderr())
		await(t, p)
	})
	t.Run("without stdin", func(t *testing.T) {
		p := start(t, m, Spec{Args: []string{"cat"}})
		if p.Stdin() != nil {
			t.Error("a process without stdin has one")
		}
		if err := p.Feed().Put([]byte("x"), nil); !errors.Is(err, ErrAfterEOF) {
			t.Errorf("got %v, want %v", err, ErrAfterEOF)
		}
		p.Feed().End()
		readAll(t, p.Stdout())
		readAll(t, p.Stderr())
		await(t, p)
	})
}

func TestClose(t *testing.T) {
	m := NewManager(Options{})
	mark := marker(t)
	detached := start(t, m, Spec{Args: sh("setsid sleep " + mark + " & yes"), Detached: true})
	background := start(t, m, Spec{Args: sh("sleep " + mark + " &")})
	readAll(t, background.Stdout())
	readAll(t, background.Stderr())
	await(t, background)
	running := start(t, m, Spec{Args: []string{"sleep", mark}, Stdin: true})
	if err := running.Feed().Put(make([]byte, 1<<20), nil); err != nil {
		t.Fatal(err)
	}
	if got := len(m.List()); got != 2 {
		t.Errorf("%d processes are listed, want 2", got)
	}
	var closes sync.WaitGroup
	for range 3 {
		closes.Go(m.Close)
	}
	closes.Wait()
	for _, p := range []*Process{detached, running} {
		await(t, p)
		if got := p.Status(); got.Signal != 9 {
			t.Errorf("got %+v, want an end by SIGKILL", got)
		}
	}
	readAll(t, running.Stdout())
	readAll(t, running.Stderr())
	if _, err := m.Start(Spec{Args: []string{"true"}}); !errors.Is(err, ErrClosed) {
		t.Errorf("Start after Close: got %v, want %v", err, ErrClosed)
	}
	// The background child was not the manager's any more.
	endChild(t, "sleep", mark)
}

func TestListAndIDs(t *testing.T) {
	m := newManager(t, Options{MaxEnded: 2})
	long := start(t, m, Spec{Args: []string{"sleep", "600"}, ID: "long", Dir: "/"})
	if _, err := m.Start(Spec{Args: []string{"true"}, ID: "long"}); err == nil || err.Error() != `id "long" is in use` {
		t.Errorf("an id that is in use: got %v", err)
	}
	ids := []string{}
	for i := range 4 {
		p := start(t, m, Spec{Args: []string{"true"}, Detached: true})
		collect(t, p.Hub().First(), 10)
		await(t, p)
		ids = append(ids, p.ID())
		if m.Get(p.ID()) != p || CheckID(p.ID()) != nil {
			t.Errorf("process %d: id %q does not name it", i, p.ID())
		}
	}
	if m.Get(ids[0]) != nil || m.Get(ids[3]) == nil {
		t.Error("the oldest ended processes are to be forgotten first")
	}
	list := m.List()
	if len(list) != 3 || list[0].ID != "long" || !list[0].Running || list[0].PID != long.PID() || list[0].Dir != "/" || list[2].ID != ids[3] || list[2].Running {
		t.Errorf("got %+v", list)
	}
	if err := long.Signal(unix.SIGTERM, false); err != nil {
		t.Errorf("Signal: %v", err)
	}
	readAll(t, long.Stdout())
	readAll(t, long.Stderr())
	await(t, long)
	if got, want := long.Status(), (Status{ExitCode: -1, Signal: 15}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if m.Get("long") != nil || m.ByPID(long.PID()) != nil {
		t.Error("a process that is not detached is remembered after its end")
	}
}

// 2.11, "large pty output right before exit is not lost": the terminal's end is
// read to the last byte.
func TestTerminalOutputIsWhole(t *testing.T) {
	m := newManager(t, Options{})
	for range 50 {
		stdout, _, _ := run(t, m, Spec{Args: sh("stty -opost; head -c 50000 /dev/zero; echo end"), TTY: true})
		if len(stdout) != 50004 || !strings.HasSuffix(stdout, "end\n") {
			t.Fatalf("got %d bytes, want 50004", len(stdout))
		}
	}
}

func TestParseStat(t *testing.T) {
	stat := func(name, state string, threads int) string {
		return fmt.Sprintf("7 (%s) %s 1 2 3 0 -1 0 0 0 0 0 0 0 0 0 20 0 %d 0 12345 0 0", name, state, threads)
	}
	for _, c := range []struct {
		stat string
		want relative
		ok   bool
	}{
		{stat("sh", "S", 1), relative{7, 1, 2, 3, 12345, false, 'S', 1, false}, true},
		{stat("a) Z 9 9 9 (b", "S", 1), relative{7, 1, 2, 3, 12345, false, 'S', 1, false}, true},
		{stat("x", "Z", 1), relative{7, 1, 2, 3, 12345, true, 'Z', 1, false}, true},
		{stat("x", "Z", 4), relative{7, 1, 2, 3, 12345, false, 'Z', 4, false}, true}, // its first thread has ended
		{strings.Replace(stat("kworker", "I", 1), " -1 0 ", " -1 2129984 ", 1), relative{7, 1, 2, 3, 12345, false, 'I', 1, true}, true},
		{"", relative{}, false},
		{"7 (sh) S 1 2", relative{}, false},
		{strings.Replace(stat("sh", "S", 1), " 1 ", " x ", 1), relative{}, false},
	} {
		if got, ok := parseStat(7, c.stat); ok != c.ok || got != c.want {
			t.Errorf("%q: got %+v, %t, want %+v, %t", c.stat, got, ok, c.want, c.ok)
		}
	}
}
