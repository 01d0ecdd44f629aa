package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

// A program is the agent in a process of its own.
type program struct {
	t      testing.TB
	cmd    *exec.Cmd
	stdout bytes.Buffer
	stderr bytes.Buffer
}

func newProgram(t testing.TB, args ...string) *program {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{})
	p := &program{t: t, cmd: testutil.Reexec(t, "agent", args...)}
	p.cmd.Stderr = &p.stderr
	p.cmd.Env = append(p.cmd.Env, "BOUVET_AGENT_LOG=", "RUST_LOG=")
	return p
}

func (p *program) start() {
	p.t.Helper()
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
}

// wait returns the exit status.
func (p *program) wait() int {
	p.t.Helper()
	timer := time.AfterFunc(patience, func() { _ = p.cmd.Process.Kill() })
	defer timer.Stop()
	err := p.cmd.Wait()
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return 0
}

// run runs it to its end.
func (p *program) run() int {
	p.t.Helper()
	p.cmd.Stdout = &p.stdout
	p.start()
	return p.wait()
}

// listening starts it on a unix socket and waits until it answers.
func (p *program) listening(socket string) *client {
	p.t.Helper()
	p.start()
	var conn net.Conn
	eventually(p.t, "the agent listens", func() bool {
		var err error
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	c := newClient(p.t, conn)
	must[m](c, "ping", nil)
	return c
}

func TestUsage(t *testing.T) {
	for _, x := range []struct {
		name           string
		args           []string
		env            string
		code           int
		stdout, stderr string
	}{
		{"version", []string{"--version"}, "", 0, "bouvet-agent test\n", ""},
		{"help", []string{"--help"}, "", 0, "-mux SOCKET", ""},
		{"unknown flag", []string{"--nope"}, "", 2, "", "bouvet-agent: flag provided but not defined: -nope"},
		{"argument", []string{"x"}, "", 2, "", `unexpected argument "x"`},
		{"two transports", []string{"--stdio", "52", "--mux", "fd:3"}, "", 2, "", "only one of"},
		{"host-bound alone", []string{"--host-bound"}, "", 2, "", "needs -mux"},
		{"lane alone", []string{"--lane", "fd:3"}, "", 2, "", "-lane needs -mux"},
		{"two ends", []string{"--poweroff", "--restart"}, "", 2, "", "only one of"},
		{"bad level", []string{"--log-level", "loud", "--stdio", "52"}, "", 2, "", "-log-level"},
		{"A2 bad port", nil, "CLEANROOM_VSOCK_PORT=x", 2, "", "CLEANROOM_VSOCK_PORT"},
		{"bad listener", []string{"--listen", "tcp:80"}, "", 1, "", "want unix:PATH"},
		{"missing channel", []string{"--mux", "/nowhere"}, "", 1, "", "no such file"},
		{"bad descriptor", []string{"--mux", "fd:99"}, "", 1, "", "bad file descriptor"},
		{"no descriptor", []string{"--mux", "fd:x"}, "", 1, "", "want fd:N"},
		{"stdio port", []string{"--stdio", "53"}, "", 1, "", "port 53 is not served"},
	} {
		t.Run(x.name, func(t *testing.T) {
			p := newProgram(t, x.args...)
			if x.env != "" {
				p.cmd.Env = append(p.cmd.Env, x.env)
			}
			code := p.run()
			if code != x.code || !strings.Contains(p.stdout.String(), x.stdout) || !strings.Contains(p.stderr.String(), x.stderr) {
				t.Errorf("got %d, stdout %q, stderr %q", code, &p.stdout, &p.stderr)
			}
		})
	}
}

// A2: the environment gives the exec port another number, beside its own where the
// host chooses by CONNECT.
func TestExecPortOfTheEnvironment(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	p := newProgram(t, "--listen", "unix:"+socket)
	p.cmd.Env = append(p.cmd.Env, "CLEANROOM_VSOCK_PORT=11000")
	c := p.listening(socket)
	for _, port := range []string{"11000", "10700"} {
		x := dial(t, socket)
		x.send("CONNECT " + port + "\n" + `{"command":["true"]}` + "\n")
		for _, want := range []string{"OK " + port, exitZero} {
			if got := x.line(); got != want {
				t.Errorf("port %s: got %q, want %q", port, got, want)
			}
		}
	}
	_ = c.Close()
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("got %d, %s", code, &p.stderr)
	}
}

// C2.
func TestWithoutVsockDevice(t *testing.T) {
	if _, err := os.Stat("/dev/vsock"); !errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is a /dev/vsock: run this where the vsock module is not loaded")
	}
	p := newProgram(t)
	if code := p.run(); code != 1 || !strings.Contains(p.stderr.String(), "/dev/vsock does not exist - vsock kernel module may not be loaded") {
		t.Errorf("got %d, %s", code, &p.stderr)
	}
}

func TestListen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	// What is not a socket stays; a dead agent's socket is replaced.
	if err := os.WriteFile(socket, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	if p := newProgram(t, "--listen", "unix:"+socket); p.run() != 1 || !strings.Contains(p.stderr.String(), "is not a socket") {
		t.Errorf("on a file: %s", &p.stderr)
	}
	if data, err := os.ReadFile(socket); string(data) != "data" {
		t.Fatalf("the file is gone: %v", err)
	}
	if err := os.Remove(socket); err != nil {
		t.Fatal(err)
	}
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()

	p := newProgram(t, "--listen", "unix:"+socket)
	c := p.listening(socket)
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	if second := newProgram(t, "--listen", "unix:"+socket); second.run() != 1 || !strings.Contains(second.stderr.String(), "another program is listening") {
		t.Errorf("second agent: %s", &second.stderr)
	}
	if info := must[m](c, "info", nil); info["agent"] != "bouvet-agent" || info["version"] != "test" || info["pid"] != float64(p.cmd.Process.Pid) || info["protocol"] != 1.0 {
		t.Errorf("info: %v", info) // T24
	}
	exec10700 := dial(t, socket)
	exec10700.send("CONNECT 10700\n" + `{"command":["sh","-c","printf %s,%s $(umask) $((6*7))"]}` + "\n")
	if got := exec10700.line(); got != "OK 10700" {
		t.Errorf("got %q", got)
	}
	if got, want := exec10700.line(), `{"type":"stdout","data":"MDAyMiw0Mg=="}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	mark := marker(t)
	c.request("exec", m{"cmd": "sleep " + mark})
	eventually(t, "the command runs", func() bool { return running(t, mark) == 1 })
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("after SIGTERM: %d, %s", code, &p.stderr)
	}
	eventually(t, "the command is gone with the agent", func() bool { return running(t, mark) == 0 })
	if _, err := os.Lstat(socket); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if !strings.Contains(p.stderr.String(), "level=DEBUG msg=request method=ping") { // C11
		t.Errorf("log: %s", &p.stderr)
	}
}

// C11: the environment chooses what is logged.
func TestLogLevel(t *testing.T) {
	for _, x := range []struct {
		args  []string
		env   string
		debug bool
	}{
		{nil, "RUST_LOG=bouvet_agent=warn", false},
		{nil, "RUST_LOG=warn,bouvet_agent=trace", true},
		{nil, "RUST_LOG=hyper=warn", true},
		{nil, "BOUVET_AGENT_LOG=error", false},
		{[]string{"--log-level=debug"}, "BOUVET_AGENT_LOG=error", true},
	} {
		p := newProgram(t, append(x.args, "--stdio", "52")...)
		p.cmd.Env = append(p.cmd.Env, x.env)
		p.cmd.Stdin = strings.NewReader(pingLine)
		if code := p.run(); code != 0 || p.stdout.String() != pongLine+"\n" || strings.Contains(p.stderr.String(), "DEBUG") != x.debug {
			t.Errorf("%v %s: got %d, %q, log %q", x.args, x.env, code, &p.stdout, &p.stderr)
		}
	}
}

func TestStdio(t *testing.T) {
	p := newProgram(t, "--stdio", "52")
	p.cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"exec","params":{"cmd":"sleep 0.05; echo hi"}}` + "\n" + pingLine)
	if code := p.run(); code != 0 || !strings.Contains(p.stdout.String(), `"stdout":"hi\n"`) || !strings.Contains(p.stdout.String(), pongLine) {
		t.Errorf("port 52: got %d, %q, %s", code, &p.stdout, &p.stderr)
	}
	p = newProgram(t, "--stdio", "10700")
	p.cmd.Stdin = strings.NewReader(`{"command":["cat"]}` + "\n" + `{"type":"stdin","data":"aGk="}` + "\n" + `{"type":"eof"}` + "\n")
	want := `{"type":"stdout","data":"aGk="}` + "\n" + `{"type":"exit","exit_code":0,"error":""}` + "\n"
	if code := p.run(); code != 0 || p.stdout.String() != want {
		t.Errorf("port 10700: got %d, %q, want %q, %s", code, &p.stdout, want, &p.stderr)
	}
	// T15: who no longer reads is gone.
	mark := marker(t)
	p = newProgram(t, "--stdio", "52")
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.start()
	if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":1,"method":"exec","params":{"cmd":"sleep %s"}}`+"\n", mark); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the command runs", func() bool { return running(t, mark) == 1 })
	_ = in.Close()
	_ = out.Close()
	if code := p.wait(); code != 0 || running(t, mark) != 0 {
		t.Errorf("got %d with %d commands left, %s", code, running(t, mark), &p.stderr)
	}
}

func TestMuxProgram(t *testing.T) {
	for _, bound := range []bool{true, false} {
		args := []string{"--mux", "fd:3"}
		if bound {
			args = append(args, "--host-bound")
		}
		p := newProgram(t, args...)
		host, guest := socketpair(t)
		f, err := guest.File()
		if err != nil {
			t.Fatal(err)
		}
		p.cmd.ExtraFiles = []*os.File{f}
		p.start()
		_ = f.Close()
		_ = guest.Close()
		mux := vsock.NewMux(host)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		conn, err := mux.Dial(ctx, 52)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		c := newClient(t, conn)
		mark := marker(t)
		if got := must[execResult](c, "exec", m{"cmd": "setsid sleep " + mark + " >/dev/null 2>&1 & ls /proc/self/fd"}); got.Stdout != "0\n1\n2\n3\n" {
			t.Errorf("a command has the descriptors %q", got.Stdout) // 3 is ls's own
		}
		_ = c.Close()
		if err := mux.Close(); err != nil {
			t.Fatal(err)
		}
		if !bound {
			if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
				t.Fatal(err)
			}
		}
		if code := p.wait(); code != 0 {
			t.Errorf("bound %v: got %d, %s", bound, code, &p.stderr)
		}
		if strings.Contains(p.stderr.String(), "DEBUG") {
			t.Errorf("bound %v: logs debug on a mux: %s", bound, &p.stderr)
		}
		endMarked(t, mark) // nobody adopts: it lives on, as it would without the agent
	}
}

// A channel that is a device: a terminal's other end stands for a virtio-serial
// port here, which has the same kinds of reads and writes.
func TestMuxOnASocketPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mux")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	p := newProgram(t, "--mux", path, "--host-bound")
	p.start()
	host, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	mux := vsock.NewMux(host.(*net.UnixConn))
	conn, err := mux.Dial(context.Background(), 52)
	if err != nil {
		t.Fatal(err)
	}
	must[m](newClient(t, conn), "ping", nil)
	if err := mux.Close(); err != nil {
		t.Error(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("got %d, %s", code, &p.stderr)
	}
}

// T16: as process 1 does, a subreaper adopts and reaps orphans, and no command
// gets the status of another.
func TestSubreaper(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	p := newProgram(t, "--listen", "unix:"+socket, "--subreaper")
	c := p.listening(socket)
	children := func() (zombies, all int) {
		return countChildren(t, p.cmd.Process.Pid)
	}
	if got := must[execResult](c, "exec", m{"cmd": "i=0; while [ $i -lt 1000 ]; do (true & true) & i=$((i+1)); done; exit 5"}); got.ExitCode != 5 {
		t.Errorf("got %+v", got)
	}
	for i := range 50 {
		if got := must[execResult](c, "exec", m{"cmd": fmt.Sprintf("(exit 99) & (sleep 0.01; exit 98) & exit %d", i)}); got.ExitCode != i {
			t.Errorf("command %d ended with %d", i, got.ExitCode)
		}
	}
	eventually(t, "all orphans are reaped", func() bool {
		zombies, all := children()
		return zombies == 0 && all == 0
	})
	mark := marker(t)
	must[execResult](c, "exec", m{"cmd": "setsid sh -c 'sleep " + mark + " & sleep " + mark + "' >/dev/null 2>&1 &"})
	eventually(t, "the daemon runs", func() bool { return running(t, mark) >= 2 })
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := p.wait(); code != 0 {
		t.Errorf("got %d, %s", code, &p.stderr)
	}
	eventually(t, "the orphans are gone with the agent", func() bool { return running(t, mark) == 0 })
}

func countChildren(t testing.TB, parent int) (zombies, all int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		stat, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(parent) {
			continue
		}
		all++
		if fields[0] == "Z" {
			zombies++
		}
	}
	return zombies, all
}

// The real binary: small, static, without net/http.
func TestBinary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bouvet-agent")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=v9", "-o", path, "github.com/bouvet-run/bouvet/cmd/bouvet-agent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > 6_000_000 {
		t.Errorf("it has %d bytes, %v; want at most 6,000,000", info.Size(), err)
	}
	deps, err := exec.Command("go", "list", "-deps", "github.com/bouvet-run/bouvet/cmd/bouvet-agent").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(deps), "\n") {
		switch line {
		case "net/http", "crypto/tls", "text/template", "html/template", "encoding/gob":
			t.Errorf("it links %s", line)
		}
	}
	cmd := exec.Command(path, "--stdio", "52", "--log-level", "error")
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"info"}` + "\n")
	out, err := cmd.Output()
	if err != nil || !bytes.Contains(out, []byte(`"version":"v9"`)) {
		t.Errorf("got %q, %v", out, err)
	}
}
