package bouvet_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// execOnly connects to a peer whose exec port plays script, after a first
// connection that only shows that it is there.
func execOnly(t *testing.T, script string) (*bouvet.AgentClient, *wiretest.Peer) {
	t.Helper()
	peer := wiretest.NewPeer(t, "eof", script)
	return connect(t, peer, &bouvet.ClientOptions{ExecOnly: true, RPCTimeout: time.Second}), peer
}

// J2, J6, J7, J8, L17, L18, L19, 2.9 rule 4, 2.10: agents that know no extension.
func TestLegacyExec(t *testing.T) {
	const request = `< ^\{"command":\["x"\]\}$` + "\n"
	for _, tt := range []struct {
		name, script   string
		stdout, stderr string
		exit           *bouvet.ExitError
		is             error
	}{
		{"streaming", request + `> {"type":"stdout","data":"aGk="}` + "\n" + `> {"type":"stderr","data":"IQ=="}` + "\n" + `> {"type":"exit","exit_code":5}`, "hi", "!", &bouvet.ExitError{Code: 5}, nil},
		{"L17 zero values left out", request + `> {"type":"exit"}`, "", "", nil, nil},
		{"J7 plain strings", request + `> {"type":"stdout","data":"not base64!"}` + "\n" + `> {"type":"exit","exit_code":0,"error":""}`, "not base64!", "", nil, nil},
		{"2.9 rule 4 type in another form", request + `> {"type":" STDOUT ","data":"aGk="}` + "\n" + `> {"type":"Exit"}`, "hi", "", nil, nil},
		{"2.9 rule 4 no data", request + `> {"type":"stdout"}` + "\n" + `> {"type":"stderr","data":""}` + "\n" + `> {"type":"exit"}`, "", "", nil, nil},
		{"J8 untyped", request + `> {"exit_code":3,"stdout":"out","stderr":"err","error":""}`, "out", "err", &bouvet.ExitError{Code: 3}, nil},
		{"J8 untyped success", request + `> {"exit_code":0,"stdout":"hello\\n","stderr":"","error":""}`, "hello\n", "", nil, nil},
		{"L18 spawn failure", request + `> {"exit_code":1,"error":"fork/exec /no: no such file or directory"}`, "", "", &bouvet.ExitError{Code: 1, Message: "fork/exec /no: no such file or directory"}, nil},
		{"2.9 spawn failure, typed", request + `> {"type":"stderr","data":"eAo="}` + "\n" + `> {"type":"exit","exit_code":1,"error":"x"}`, "", "x\n", &bouvet.ExitError{Code: 1, Message: "x"}, nil},
		{"2.10 killed", request + `> {"type":"exit","exit_code":-1}`, "", "", &bouvet.ExitError{Code: -1}, nil},
		{"T02 killed for memory", request + `> {"type":"exit","exit_code":-1,"error":"signal: killed","signal":9,"oom_killed":true}`, "", "", &bouvet.ExitError{Code: -1, Signal: syscall.SIGKILL, OOMKilled: true, Message: "signal: killed"}, nil},
		{"glued", request + `>> {"type":"stdout","data":"aGk="}\n{"type":"exit"}\n{"type":"exit","exit_code":9}`, "hi", "", nil, nil},
		{"neither type nor exit code", request + `> {}`, "", "", nil, bouvet.ErrJSON},
		{"2.9 rule 1 unknown type", request + `> {"type":"heartbeat"}`, "", "", nil, bouvet.ErrJSON},
		{"2.9 rule 1 started unasked", request + `> {"type":"started","pid":7}`, "", "", nil, bouvet.ErrJSON},
		{"not JSON", request + "> hello", "", "", nil, bouvet.ErrJSON},
		{"T21 exit 2^31", request + `> {"type":"exit","exit_code":2147483648}`, "", "", nil, bouvet.ErrJSON},
		{"T21 exit 256", request + `> {"type":"exit","exit_code":256}`, "", "", nil, bouvet.ErrJSON},
		{"T18 line without end", request + "repeat 20M x", "", "", nil, bouvet.ErrJSON},
		{"no exit", request + `> {"type":"stdout","data":"aGk="}`, "hi", "", nil, io.ErrUnexpectedEOF},
		{"T20 half a line", request + `>> {"type":"std` + "\nstall", "", "", nil, bouvet.ErrIO},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, peer := execOnly(t, tt.script)
			var stdout, stderr bytes.Buffer
			cmd := c.Command(t.Context(), "x")
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if stdout.String() != tt.stdout || stderr.String() != tt.stderr {
				t.Errorf("got %q and %q, want %q and %q", &stdout, &stderr, tt.stdout, tt.stderr)
			}
			var exit *bouvet.ExitError
			switch {
			case tt.is != nil:
				if !errors.Is(err, tt.is) {
					t.Errorf("got %v, want %v", err, tt.is)
				}
			case tt.exit == nil:
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &exit) || exit.Code != tt.exit.Code || exit.Message != tt.exit.Message:
				t.Errorf("got %v, want %+v", err, tt.exit)
			}
			if got := fmt.Sprint(peer.Dials()); got != "[10700 10700]" { // A2
				t.Errorf("got ports %s", got)
			}
		})
	}
}

// J2, J5: what an old agent is sent, input frames included.
func TestLegacyInput(t *testing.T) {
	c, _ := execOnly(t, `
		< ^\{"command":\["cat","-"\],"dir":"/w","env":\["A=b"\],"tty":true\}$
		< ^\{"type":"resize","cols":120,"rows":40\}$
		< ^\{"type":"stdin","data":"YWJj"\}$
		< ^\{"type":"eof"\}$
		> {"type":"exit"}
	`)
	cmd := c.Command(t.Context(), "cat", "-")
	cmd.Dir, cmd.Env, cmd.TTY, cmd.Size = "/w", []string{"A=b"}, true, bouvet.WindowSize{Cols: 120, Rows: 40}
	cmd.Stdin = strings.NewReader("abc")
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}

// What an old agent cannot do is refused before anything is sent.
func TestLegacyRefusals(t *testing.T) {
	c, peer := execOnly(t, "eof")
	for name, change := range map[string]func(*bouvet.Cmd){
		"another user": func(c *bouvet.Cmd) { c.User = "nobody" },
		"detached":     func(c *bouvet.Cmd) { c.Detach = true },
	} {
		cmd := c.Command(t.Context(), "x")
		change(cmd)
		if err := cmd.Start(); !errors.Is(err, bouvet.ErrUnsupported) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v, want it named as not supported", name, err)
		}
	}
	if err := c.Attach(t.Context(), "x", 0).Start(); !errors.Is(err, bouvet.ErrUnsupported) {
		t.Errorf("attach: got %v, want not supported", err)
	}
	if got := len(peer.Dials()); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}
	cmd := c.Command(t.Context(), "x")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Signal(syscall.SIGTERM); !errors.Is(err, bouvet.ErrUnsupported) {
		t.Errorf("signal: got %v, want not supported", err)
	}
	if err := cmd.Release(); err != nil {
		t.Error(err)
	}
	// It cannot end a command at its time, so the host gives it up.
	cmd = c.Command(t.Context(), "x")
	cmd.Timeout = 50 * time.Millisecond
	if err := cmd.Run(); !errors.Is(err, bouvet.ErrTimedOut) {
		t.Errorf("timeout: got %v, want ErrTimedOut", err)
	}
}

// T17 to T21 on a stream of binary frames, of an agent that knows all extensions.
func TestExecLies(t *testing.T) {
	const info = `{"agent":"a","version":"1","protocol":1,"capabilities":["exec.extended","exec.detach","exec.binary"],"pid":1}`
	started := frame(4, `{"type":"started","pid":7}`)
	for _, tt := range []struct {
		name, script string
		want         error
	}{
		{"good", started + frame(2, "out") + frame(4, `{"type":"exit"}`), nil},
		{"4 GiB", started + "bytes 02 ffffffff\nstall", bouvet.ErrJSON},
		{"unknown kind", started + frame(77, ""), bouvet.ErrJSON},
		{"kind of a download", started + frame(5, "x"), bouvet.ErrJSON},
		{"stdout as control", started + frame(4, `{"type":"stdout","data":"aGk="}`), bouvet.ErrJSON},
		{"untyped control", started + frame(4, `{"exit_code":0}`), bouvet.ErrJSON},
		{"started twice", started + started, bouvet.ErrJSON},
		{"negative pid", frame(4, `{"type":"started","pid":-1}`), bouvet.ErrJSON},
		{"bad id", frame(4, `{"type":"started","pid":1,"id":"../../x"}`), bouvet.ErrJSON},
		{"exit signal 99", started + frame(4, `{"type":"exit","exit_code":-1,"signal":99}`), bouvet.ErrJSON},
		{"exit at once", frame(4, `{"type":"exit","exit_code":0}`), bouvet.ErrJSON},
		{"nothing", "close", io.ErrUnexpectedEOF},
		{"never started", "stall", bouvet.ErrRPC},
		{"half a frame", started + "bytes 02 00000010 61\nstall", bouvet.ErrIO},
		{"broken frame", started + "bytes 02 00000010 61\nclose", io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer := wiretest.NewPeer(t,
				ponged+"< \"id\":(?P<id>\\d+),\"method\":\"info\"\n> {\"jsonrpc\":\"2.0\",\"id\":${id},\"result\":"+info+"}\neof",
				`< "command":\["x"\],"no_stdin":true,"started":true,"framing":"binary"`+"\n"+tt.script)
			c := connect(t, peer, &bouvet.ClientOptions{RPCTimeout: 200 * time.Millisecond})
			if err := c.Command(t.Context(), "x").Run(); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// T24: what an agent says of itself is used where we know the same, and nowhere
// else; it cannot talk its host into anything.
func TestInfoClaims(t *testing.T) {
	const plain = `< ^\{"command":\["x"\]\}$` + "\n" + `> {"type":"exit"}`
	for _, tt := range []struct {
		name, info string
		exec       string // the script of the exec port
		want       error
	}{
		{
			"unknown capabilities", `{"agent":"a","version":"99","protocol":1,"capabilities":["root.on.host","exec.extended"],"pid":1,"more":[{}]}`,
			`< ^\{"command":\["x"\],"no_stdin":true,"started":true\}$` + "\n" + `> {"type":"started","pid":7}` + "\n" + `> {"type":"exit"}`, nil,
		},
		{"none", `{"agent":"a","version":"1","protocol":1,"capabilities":[],"pid":1}`, plain, nil},
		{"null", `{"agent":"a","version":"1","protocol":1,"capabilities":null}`, plain, nil},
		{"nothing at all", `{}`, plain, nil},
		{"a later protocol", `{"protocol":2,"capabilities":["exec.extended","exec.binary"]}`, plain, nil},
		{"an earlier one", `{"protocol":-1,"capabilities":["exec.extended","exec.binary"]}`, plain, nil},
		{"in other case", `{"protocol":1,"Capabilities":["exec.binary"],"CAPABILITIES":["exec.binary"]}`, plain, nil},
		{"of other type", `{"protocol":1,"capabilities":"exec.binary"}`, "eof", bouvet.ErrJSON},
		{"protocol beyond all bounds", `{"protocol":1e400,"capabilities":[]}`, "eof", bouvet.ErrJSON},
		{"twice", `{"protocol":1,"protocol":2,"capabilities":[]}`, "eof", bouvet.ErrJSON},
		{"without end", `{"version":"` + strings.Repeat("9", 1<<20) + `"}`, "eof", bouvet.ErrJSON},
	} {
		t.Run(tt.name, func(t *testing.T) {
			peer := wiretest.NewPeer(t, answering("info", tt.info), tt.exec)
			c := connect(t, peer, &bouvet.ClientOptions{RPCTimeout: time.Second})
			if err := c.Command(t.Context(), "x").Run(); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// The agent is given entropy by the first command of a sandbox, and only by that.
func TestEntropySeed(t *testing.T) {
	seeds := make(chan int, 4)
	fake := fakeWithExec(t, func(req wire.ExecRequest) { seeds <- len(req.EntropySeed) })
	m := newManager(t, fake, bouvet.ManagerOptions{})
	s, err := m.CreateSandbox(t.Context(), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{32, 0, 0} {
		if err := s.Command(context.Background(), "x").Run(); err != nil {
			t.Fatal(err)
		}
		if got := <-seeds; got != want {
			t.Errorf("command %d: got a seed of %d bytes, want %d", i, got, want)
		}
	}
}
