package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm/vmtest"
	"github.com/bouvet-run/bouvet/wire"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

// An evilAgent has a script for each port; each of its connections plays it anew.
type evilAgent struct{ rpc, exec string }

// manager returns a manager whose sandboxes have this agent. It is what root in a
// guest can make of the real one.
func (a evilAgent) manager(t *testing.T, c bouvet.Config) *bouvet.Manager {
	t.Helper()
	scripts := map[uint32]*wiretest.Script{}
	for port, text := range map[uint32]string{wire.PortRPC: a.rpc, wire.PortExec: a.exec} {
		s, err := wiretest.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		scripts[port] = s
	}
	guest := vmtest.Scripted(func(ctx context.Context, conn net.Conn, port uint32) {
		if s := scripts[port]; s != nil {
			_ = s.Run(ctx, conn) // what it expected and did not get, the host knows better
		}
	})
	c.RootfsPath = "/image"
	m, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: vmtest.NewFake(t, vmtest.FakeOptions{Guest: guest}), Defaults: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(timed(t)); err != nil {
			t.Error(err)
		}
	})
	return m
}

// ponged answers the first ping.
const ponged = `
< "id":(?P<id>\d+),"method":"ping"
> {"jsonrpc":"2.0","id":${id},"result":{"pong":true}}
`

// informed answers what a command asks first, and claims all there is (T24).
const informed = ponged + `
< "id":(?P<id>\d+),"method":"info"
> {"jsonrpc":"2.0","id":${id},"result":{"agent":"bouvet-agent","version":"666","protocol":1,"capabilities":["exec.extended","exec.detach","exec.binary","files","streams","watch"],"pid":1}}
`

// hurried are short times, so that what never comes is given up soon.
var hurried = bouvet.Config{RPCTimeout: 300 * time.Millisecond, ConnectTimeout: 2 * time.Second, StopGrace: -1}

// attack runs one call against an agent and fails unless that is an error of one
// of the kinds that a peer can cause. The host's memory stays as it was.
func attack(t *testing.T, a evilAgent, call func(s *bouvet.Sandbox) error) error {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{})
	s, err := a.manager(t, hurried).CreateSandbox(timed(t), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := newGauge()
	begin := time.Now()
	err = call(s)
	g.most = heap()
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("the call took %v", took)
	}
	kinds := []error{bouvet.ErrJSON, bouvet.ErrIO, bouvet.ErrRPC, bouvet.ErrConnection}
	known := false
	for _, kind := range kinds {
		known = known || errors.Is(err, kind)
	}
	if !known {
		t.Errorf("got %v, want an error that says what the agent did", err)
	}
	if strings.ContainsAny(fmt.Sprint(err), "\x1b\n\r\x00") || len(fmt.Sprint(err)) > 16<<10 {
		t.Errorf("an error of %d bytes that may not be printed: %.300q", len(fmt.Sprint(err)), err)
	}
	// The longest reply that there is, in a buffer that grew by doubling.
	if grown := int64(g.most) - int64(g.start); grown > 3*wire.MaxRPCLine {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	return err
}

// T17, T19, T20: what an agent may answer a call with.
func TestEvilReplies(t *testing.T) {
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	for name, answer := range map[string]string{
		"T17 malformed":            `> {"jsonrpc":`,
		"T17 nesting":              `> {"jsonrpc":"2.0","id":${id},"result":{"content":` + deep + `}}`,
		"T17 nested without end":   `repeat 4M [`,
		"T17 duplicate key":        `> {"jsonrpc":"2.0","id":${id},"result":{"content":"a"},"result":{"content":"b"}}`,
		"T17 other case":           `> {"jsonrpc":"2.0","ID":${id},"RESULT":{"content":"b"}}`,
		"T17 kelvin sign":          `> {"jsonrpc":"2.0","id":${id},"reſult":{"content":"b"}}`,
		"T17 wrong type":           `> {"jsonrpc":"2.0","id":${id},"result":{"content":7}}`,
		"T17 number too large":     `> {"jsonrpc":"2.0","id":1e400,"result":{"content":""}}`,
		"T17 invalid UTF-8":        `> {"jsonrpc":"2.0","id":${id},"result":{"content":"` + `\xff` + `"}}`,
		"T17 null":                 `> null`,
		"T17 blank lines for ever": `repeat 64M \n`,
		"T18 line of 1 GiB":        `repeat 1G x`,
		"T19 another id":           `> {"jsonrpc":"2.0","id":${id}1,"result":{"content":""}}`,
		"T19 id of another type":   `> {"jsonrpc":"2.0","id":"${id}","result":{"content":""}}`,
		"T19 negative id":          `> {"jsonrpc":"2.0","id":-${id},"result":{"content":""}}`,
		"T19 no id":                `> {"jsonrpc":"2.0","result":{"content":""}}`,
		"T19 request":              `> {"jsonrpc":"2.0","id":${id},"method":"exec","params":{"cmd":"id"}}`,
		"T19 result and error":     `> {"jsonrpc":"2.0","id":${id},"result":{"content":""},"error":{"code":1,"message":"x"}}`,
		"T19 other version":        `> {"jsonrpc":"1.0","id":${id},"result":{"content":""}}`,
		"T20 nothing":              `stall`,
		"T20 half":                 ">> {\"jsonrpc\":\"2.0\",\"id\":${id},\nstall",
		"T20 byte by byte":         `drip 50ms {"jsonrpc":"2.0","id":${id},"result":{"content":""}}`,
		"T23 hostile error":        `> {"jsonrpc":"2.0","id":${id},"error":{"code":-32603,"message":"\u001b[2J\r\nlevel=ERROR \u202e fake %n%s"}}`,
		"closes":                   `close`,
	} {
		t.Run(name, func(t *testing.T) {
			a := evilAgent{rpc: ponged + "< \"id\":(?P<id>\\d+),\"method\":\"read_file\"\n" + answer + "\neof"}
			_ = attack(t, a, func(s *bouvet.Sandbox) error {
				content, err := s.ReadFile(timed(t), "/x")
				if err == nil {
					t.Errorf("got %.40q", content)
				}
				return err
			})
		})
	}
}

// control is the step that writes a control frame.
func control(json string) string { return fmt.Sprintf("bytes 04 %08x %x", len(json), json) }

// T18, T20, T21: what an agent may say in the stream of a command.
func TestEvilStreams(t *testing.T) {
	started := control(`{"type":"started","pid":7}`)
	for name, answer := range map[string]string{
		"T18 frame of 4 GiB":        started + "\nbytes 02 ffffffff\nstall",
		"T18 unknown frame":         started + "\nbytes 77 00000001 00",
		"T18 truncated header":      started + "\nbytes 02 0000",
		"T18 truncated payload":     started + "\nbytes 02 00000010 41",
		"T18 lines after all":       `> {"type":"stdout","data":"aGk="}`,
		"T18 garbage":               "garbage 64K 7",
		"T20 never starts":          "stall",
		"T20 stalls in a frame":     started + "\nbytes 02 00000010 41\nstall",
		"T21 starts twice":          started + "\n" + started,
		"T21 exit 2^31":             started + "\n" + control(`{"type":"exit","exit_code":2147483648}`),
		"T21 exit 256":              started + "\n" + control(`{"type":"exit","exit_code":256}`),
		"T21 exit -2":               started + "\n" + control(`{"type":"exit","exit_code":-2}`),
		"T21 signal 999":            started + "\n" + control(`{"type":"exit","exit_code":-1,"signal":999}`),
		"T21 negative pid":          control(`{"type":"started","pid":-7}`),
		"T21 id of a path":          control(`{"type":"started","pid":7,"id":"../../x"}`),
		"T21 unknown type":          started + "\n" + control(`{"type":"format_disk"}`),
		"T17 duplicate key in exit": started + "\n" + control(`{"type":"exit","exit_code":1,"exit_code":0}`),
		"T19 output as control":     started + "\n" + control(`{"type":"stdout","data":"aGk="}`),
		"ends without exit":         started,
	} {
		t.Run(name, func(t *testing.T) {
			a := evilAgent{rpc: informed + "eof", exec: "< \"command\"\n" + answer + "\nclose"}
			if strings.HasSuffix(answer, "stall") {
				a.exec = "< \"command\"\n" + answer
			}
			_ = attack(t, a, func(s *bouvet.Sandbox) error { return s.Command(timed(t), "true").Run() })
		})
	}
}

// T05, T20: an agent that floods a stream without end is as harmless as one whose
// command does, and ends with its context.
func TestEvilFlood(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	chunk := strings.Repeat("00", 1<<10)
	a := evilAgent{rpc: informed + "eof", exec: "< \"command\"\n" + control(`{"type":"started","pid":7}`) +
		"\nloop 10000000\nbytes 02 00000400 " + chunk}
	s, err := a.manager(t, hurried).CreateSandbox(timed(t), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(timed(t))
	defer cancel()
	g := newGauge()
	c := s.Command(ctx, "yes")
	c.Stdout = writerFunc(func(p []byte) (int, error) {
		if g.n > 64<<20 {
			cancel()
		}
		return g.Write(p)
	})
	if err := c.Run(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	g.check(t)
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// T24: a sandbox whose agent does not answer as one is not made, and what was made
// of it is gone.
func TestEvilCreation(t *testing.T) {
	for name, script := range map[string]string{
		"answers nothing":      "stall",
		"closes":               "close",
		"babbles":              "repeat 1G x",
		"is no agent":          "> HTTP/1.1 400 Bad Request",
		"answers another":      "< ping\n> {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{\"pong\":true}}\neof",
		"denies":               "< \"id\":(?P<id>\\d+)\n> {\"jsonrpc\":\"2.0\",\"id\":${id},\"result\":{\"pong\":false}}\neof",
		"refuses":              "< \"id\":(?P<id>\\d+)\n> {\"jsonrpc\":\"2.0\",\"id\":${id},\"error\":{\"code\":-32601,\"message\":\"\\u001b[2J no\"}}\neof",
		"drips":                "drip 100ms {\"jsonrpc\":\"2.0\"",
		"speaks before asked":  "> {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"pong\":false}}\neof",
		"asks instead":         "< ping\n> {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\neof",
		"talks while one asks": "garbage 1M 3\nstall",
	} {
		t.Run(name, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			m := evilAgent{rpc: script}.manager(t, hurried)
			begin := time.Now()
			s, err := m.CreateSandbox(timed(t), bouvet.Config{})
			if err == nil {
				t.Fatalf("got a sandbox in state %v", s.State())
			}
			if strings.ContainsAny(err.Error(), "\x1b\n\r\x00") {
				t.Errorf("an error that may not be printed: %q", err)
			}
			if took := time.Since(begin); took > 15*time.Second {
				t.Errorf("it took %v to find out", took)
			}
			if len(m.List()) > 0 {
				t.Errorf("the manager lists %v", m.List())
			}
		})
	}
}

// T24: an agent that takes back what it said it could do is told apart from one
// that fails.
func TestEvilDowngrade(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	a := evilAgent{
		rpc:  informed + "< \"id\":(?P<id>\\d+)\n> {\"jsonrpc\":\"2.0\",\"id\":${id},\"error\":{\"code\":-32601,\"message\":\"method not found\"}}\neof",
		exec: "< \"framing\":\"binary\"\n> {\"type\":\"exit\",\"exit_code\":0}\neof",
	}
	s, err := a.manager(t, hurried).CreateSandbox(timed(t), bouvet.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Info(timed(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client().Download(timed(t), "/x", io.Discard); !errors.Is(err, bouvet.ErrUnsupported) {
		t.Errorf("download: got %v, want ErrUnsupported", err)
	}
	if err := s.Command(timed(t), "true").Run(); !errors.Is(err, bouvet.ErrJSON) {
		t.Errorf("lines where frames were agreed on: got %v, want ErrJSON", err)
	}
}
