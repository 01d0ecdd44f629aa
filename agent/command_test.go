package agent_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/bouvet-run/bouvet/agent"
)

type execResult struct {
	ExitCode int    `json:"exit_code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	TimedOut bool   `json:"timed_out"`
}

func TestExec(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	long := strings.Repeat("x", 1<<20)
	const cut = "\n... [output truncated]"
	for _, x := range []struct {
		name, cmd string
		want      execResult
	}{
		{"D2 output", "echo out; echo err >&2", execResult{0, "out\n", "err\n", false}},
		{"D2 through sh", `x=1; echo $((x+1)) | cat`, execResult{0, "2\n", "", false}},
		{"D7 exit code", "exit 7", execResult{7, "", "", false}},
		{"empty", "", execResult{0, "", "", false}},
		{"ended by a signal", "kill -9 $$", execResult{-1, "", "", false}},
		{"not found", "/nonexistent 2>/dev/null", execResult{127, "", "", false}},
		{"stdin is empty", "cat; echo $?", execResult{0, "0\n", "", false}},
		{"T10 NUL and control characters", `printf 'a\000b\033[31m\r'`, execResult{0, "a\x00b\x1b[31m\r", "", false}},
		{"T10 invalid UTF-8", `printf '\377\376a\342\202b\360\237\230c\355\240\200'`, execResult{0, "\ufffd\ufffda\ufffdb\ufffdc\ufffd\ufffd\ufffd", "", false}},
		{"D8 exactly 1 MiB", `head -c 1048576 /dev/zero | tr '\0' x`, execResult{0, long, "", false}},
		{"D8 one more", `head -c 1048577 /dev/zero | tr '\0' x`, execResult{0, long + cut, "", false}},
		{"D8 each stream", `head -c 3000000 /dev/zero | tr '\0' x >&2; echo ok`, execResult{0, "ok\n", long + cut, false}},
		{"D8 within a character", `head -c 1048575 /dev/zero | tr '\0' x; printf '\303\251z'`, execResult{0, long[1:] + cut, "", false}},
		{"D8 after a character", `head -c 1048574 /dev/zero | tr '\0' x; printf '\303\251z'`, execResult{0, long[2:] + "é" + cut, "", false}},
		{"D8 before invalid bytes", `head -c 1048575 /dev/zero | tr '\0' x; printf '\377'`, execResult{0, long[1:] + cut, "", false}},
	} {
		t.Run(x.name, func(t *testing.T) {
			c := &client{t: t, Conn: c.Conn, r: c.r}
			got := must[execResult](c, "exec", m{"cmd": x.cmd})
			if got != x.want {
				t.Errorf("got  %s\nwant %s", brief(got), brief(x.want))
			}
		})
	}
}

func brief(r execResult) string {
	for _, s := range []*string{&r.Stdout, &r.Stderr} {
		if len(*s) > 200 {
			*s = fmt.Sprintf("(%d bytes)...%s", len(*s), (*s)[len(*s)-60:])
		}
	}
	return fmt.Sprintf("%+q", fmt.Sprint(r))
}

// D3, D4, L11, D5, D6.
func TestExecCode(t *testing.T) {
	bin := t.TempDir()
	for _, interpreter := range []string{"python3", "node", "bash"} {
		script := fmt.Sprintf("#!/bin/sh\nprintf '%%s|' %s \"$@\"\n", interpreter)
		if err := os.WriteFile(bin+"/"+interpreter, []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	c := dial(t, startServer(t, agent.Options{}))
	for lang, want := range map[string]string{
		"python": "python3|-c|x y|", "python3": "python3|-c|x y|", "Python": "python3|-c|x y|", "PYTHON3": "python3|-c|x y|",
		"node": "node|-e|x y|", "javascript": "node|-e|x y|", "js": "node|-e|x y|", "JavaScript": "node|-e|x y|",
		"bash": "bash|-c|x y|", "Bash": "bash|-c|x y|",
	} {
		if got := must[execResult](c, "exec_code", m{"lang": lang, "code": "x y"}); got.Stdout != want || got.ExitCode != 0 {
			t.Errorf("%s ran %+v, want %s", lang, got, want)
		}
	}
	if got := must[execResult](c, "exec_code", m{"lang": "sh", "code": "echo $0; exit 3"}); got != (execResult{3, "sh\n", "", false}) {
		t.Errorf("sh: got %+v", got)
	}
	for _, lang := range []string{"cobol", "", "python2", "sh ", "\x1b[2J"} { // D5
		if got, want := must[execResult](c, "exec_code", m{"lang": lang, "code": ""}), (execResult{-1, "", "unsupported language: " + lang, false}); got != want {
			t.Errorf("%q: got %+v, want %+v", lang, got, want)
		}
	}
	if err := os.Remove(bin + "/node"); err != nil {
		t.Fatal(err)
	}
	none := m{"lang": "js", "code": "", "env": []string{"PATH=" + bin}}
	if got := must[execResult](c, "exec_code", none); got.ExitCode != -1 || got.Stdout != "" || !strings.HasPrefix(got.Stderr, "failed to execute node: ") { // D6
		t.Errorf("without node: got %+v", got)
	}
	got := must[execResult](c, "exec", m{"cmd": "true", "dir": "/nowhere"})
	if want := (execResult{-1, "", "failed to execute sh: chdir /nowhere: no such file or directory", false}); got != want {
		t.Errorf("in a missing directory: got %+v, want %+v", got, want)
	}
}

// Code longer than Linux takes as an argument runs all the same, and behaves as
// shorter code does.
func TestLongCode(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	for _, x := range []struct{ lang, comment, code, want string }{
		{"sh", "#", `cat; echo "$0"; exit 3`, "sh\n"},
		{"bash", "#", `cat; echo "$0"; exit 3`, "bash\n"},
		{"python", "#", "import sys\ndef f(): return sys.stdin.read() + sys.argv[0] + __name__\nprint(f())\nsys.exit(3)", "-c__main__\n"},
		{"node", "//", `const fs = require("fs"); console.log(fs.readFileSync(0, "utf8") + process.argv.length); process.exitCode = 3`, "1\n"},
	} {
		short := must[execResult](c, "exec_code", m{"lang": x.lang, "code": x.code})
		if short.ExitCode == -1 {
			t.Logf("%s is not installed here: %s", x.lang, short.Stderr)
			continue
		}
		long := must[execResult](c, "exec_code", m{"lang": x.lang, "code": strings.Repeat(x.comment+strings.Repeat("x", 99)+"\n", 20_000) + x.code})
		want := execResult{3, x.want, "", false}
		if short != want || long != want {
			t.Errorf("%s: short code gives %+v, long code %s, want %+v", x.lang, short, brief(long), want)
		}
	}
	long := strings.Repeat("#", 128<<10-1) // the longest argument
	for i := range 2 {
		if got := must[execResult](c, "exec", m{"cmd": "echo ok" + strings.Repeat(" ", i) + "\n" + long[8:]}); got != (execResult{0, "ok\n", "", false}) {
			t.Errorf("%d bytes more: %s", i, brief(got))
		}
	}
	// It ends without having read its code.
	got := must[execResult](c, "exec_code", m{"lang": "sh", "code": strings.Repeat("#", 4<<20), "env": []string{"PATH=/nowhere"}})
	if got.ExitCode != -1 && got.ExitCode != 127 && got.Stderr == "" {
		t.Errorf("got %s", brief(got))
	}
}

func TestExecOptions(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	got := must[execResult](c, "exec", m{"cmd": `pwd; echo "$A,$B"`, "dir": "/usr", "env": []string{"A=1", "B=x=y"}})
	if want := "/usr\n1,x=y\n"; got.Stdout != want {
		t.Errorf("dir and env: got %q, want %q", got.Stdout, want)
	}
	if os.Getuid() == 0 {
		if got := must[execResult](c, "exec", m{"cmd": "id -u; id -g", "user": "12345:54321"}); got.Stdout != "12345\n54321\n" {
			t.Errorf("user: got %+v", got)
		}
	}
	mark := marker(t)
	got = must[execResult](c, "exec", m{"cmd": "echo begun; sleep " + mark + " & sleep " + mark, "timeout_ms": 200})
	if want := (execResult{-1, "begun\n", "", true}); got != want {
		t.Errorf("timeout: got %+v, want %+v", got, want)
	}
	eventually(t, "the timed-out command and its child are gone", func() bool { return running(t, mark) == 0 })
	if got := must[execResult](c, "exec", m{"cmd": "true", "timeout_ms": uint64(1<<64 - 1)}); got.ExitCode != 0 || got.TimedOut {
		t.Errorf("longest timeout: got %+v", got)
	}
}

// T13: a child that lives on and holds the output does not hold up the answer.
func TestBackgroundChildDoesNotDelayTheAnswer(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	mark := marker(t)
	got := must[execResult](c, "exec", m{"cmd": "sleep " + mark + " & echo $!"})
	eventually(t, "the background child runs, after the answer", func() bool { return running(t, mark) == 1 })
	if got := must[execResult](c, "exec", m{"cmd": "kill -9 " + got.Stdout}); got.ExitCode != 0 {
		t.Errorf("kill: %+v", got)
	}
	eventually(t, "the background child is gone", func() bool { return running(t, mark) == 0 })
}

// T15: what runs for a connection ends with it.
func TestDisconnectKillsTheCommand(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for _, cmd := range []string{"sleep %s", "trap '' TERM HUP; sleep %[1]s & setsid sleep %[1]s & wait"} {
		c := dial(t, socket)
		mark := marker(t)
		c.request("exec", m{"cmd": fmt.Sprintf(cmd, mark)})
		want := strings.Count(cmd, "sleep")
		eventually(t, "the command runs", func() bool { return running(t, mark) == want })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the command is gone", func() bool { return running(t, mark) == 0 })
	}
}

// Requests that are quick overtake a command on the same connection, and then
// its answer still comes.
func TestPingWhileACommandRuns(t *testing.T) {
	c := dial(t, startServer(t, agent.Options{}))
	gate := t.TempDir() + "/gate"
	exec := c.request("exec", m{"cmd": "until [ -e " + gate + " ]; do sleep 0.01; done; echo through"})
	for _, method := range []string{"ping", "info", "processes"} {
		must[any](c, method, m{})
	}
	if r := c.call("signal", m{"pid": os.Getpid(), "signal": 9}); r.Error == nil {
		t.Error("the agent signalled a process that is not its own")
	}
	must[m](dial(t, c.RemoteAddr().String()), "write_file", m{"path": gate, "content": ""})
	if r := c.response(); r.ID != exec || !bytes.Contains(r.Result, []byte("through")) {
		t.Errorf("got %d %s, want the answer to %d", r.ID, r.Result, exec)
	}
}

// T16: each command's outcome is its own.
func TestManyCommandsAtOnce(t *testing.T) {
	socket := startServer(t, agent.Options{})
	var clients sync.WaitGroup
	for i := range 200 {
		c := dial(t, socket)
		clients.Go(func() {
			want := execResult{i % 128, fmt.Sprintf("%d\n", i), "", false}
			if got := must[execResult](c, "exec", m{"cmd": fmt.Sprintf("echo %d; exit %d", i, i%128)}); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
	clients.Wait()
}

// T05, K7, L16: output beyond the limit costs time and no memory.
func TestOutputBeyondTheLimitTakesNoMemory(t *testing.T) {
	const size = 512 << 20
	c := dial(t, startServer(t, agent.Options{}))
	before := heap()
	c.request("exec", m{"cmd": fmt.Sprintf("yes | head -c %d", size)})
	var peak uint64
	answered := make(chan string, 1)
	go func() {
		line, _ := c.r.ReadString('\n')
		answered <- line
	}()
	for done := false; !done; {
		select {
		case line := <-answered:
			done = true
			if !strings.Contains(line, "[output truncated]") {
				t.Errorf("got %.100q, want truncated output", line)
			}
		case <-time.After(20 * time.Millisecond):
			peak = max(peak, heap())
		}
	}
	if grown := int64(peak) - int64(before); grown > 16<<20 {
		t.Errorf("heap grew by %d bytes for %d bytes of output", grown, size)
	}
}

func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

func TestProcessesAndSignal(t *testing.T) {
	socket := startServer(t, agent.Options{})
	c, other := dial(t, socket), dial(t, socket)
	mark := marker(t)
	id := c.request("exec", m{"cmd": "exec sleep " + mark, "dir": "/usr"})
	type process struct {
		PID     int      `json:"pid"`
		Command []string `json:"command"`
		Dir     string   `json:"dir"`
		Started int64    `json:"started_ms"`
		Running bool     `json:"running"`
	}
	var list struct{ Processes []process }
	eventually(t, "the command runs", func() bool { return running(t, mark) == 1 })
	list = must[struct{ Processes []process }](other, "processes", nil)
	if len(list.Processes) != 1 {
		t.Fatalf("got %+v, want one process", list)
	}
	p := list.Processes[0]
	if !p.Running || p.PID == 0 || p.Dir != "/usr" || strings.Join(p.Command, " ") != "sh -c exec sleep "+mark || time.Since(time.UnixMilli(p.Started)) > time.Hour {
		t.Errorf("got %+v", p)
	}
	refuse(other, -32602, "one of id and pid", "signal", m{"signal": 9})
	refuse(other, -32602, "one of id and pid", "signal", m{"signal": 9, "pid": p.PID, "id": "x"})
	refuse(other, -32602, "signal 65", "signal", m{"signal": 65, "pid": p.PID})
	refuse(other, -32602, "signal 0", "signal", m{"pid": p.PID})
	refuse(other, -32603, "no such process", "signal", m{"signal": 9, "pid": 1})
	refuse(other, -32603, "no such process", "signal", m{"signal": 9, "id": "none"})
	must[struct{}](other, "signal", m{"signal": 15, "pid": p.PID, "group": true})
	if r := c.response(); r.ID != id || !bytes.Contains(r.Result, []byte(`"exit_code":-1`)) {
		t.Errorf("got %d %s, want exit_code -1", r.ID, r.Result)
	}
	if list := must[struct{ Processes []process }](other, "processes", nil); len(list.Processes) != 0 {
		t.Errorf("after its end: %+v", list)
	}
}

// A reader that stops holds up its own connection, and no other.
func TestSlowReaderHoldsUpOnlyItself(t *testing.T) {
	socket := startServer(t, agent.Options{})
	slow, quick := dial(t, socket), dial(t, socket)
	if err := slow.Conn.(*net.UnixConn).SetReadBuffer(1 << 10); err != nil {
		t.Fatal(err)
	}
	for range 12 {
		slow.request("exec", m{"cmd": "head -c 1000000 /dev/zero"}) // six bytes for each in JSON
	}
	for range 20 {
		must[m](quick, "ping", nil)
		if got := must[execResult](quick, "exec", m{"cmd": "echo ok"}); got.Stdout != "ok\n" {
			t.Errorf("got %+v", got)
		}
	}
	for i := range 12 {
		if r := slow.response(); r.ID != uint64(i+1) || !utf8.Valid(r.Result) || len(r.Result) < 6_000_000 {
			t.Errorf("slow reader: answer %d of %d bytes", r.ID, len(r.Result))
		}
	}
}
