package agent_test

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An execution is the host's end of an exec connection, in plain bytes.
type execution struct {
	*client
	binary bool
}

// connectExec reaches the exec port.
func connectExec(t testing.TB, socket string) *execution {
	t.Helper()
	c := dial(t, socket)
	c.send("CONNECT 10700\n")
	if got, want := c.line(), "OK 10700"; got != want {
		t.Fatalf("handshake: got %q, want %q", got, want)
	}
	return &execution{client: c}
}

// execute sends a request line.
func execute(t testing.TB, socket, request string) *execution {
	t.Helper()
	x := connectExec(t, socket)
	x.binary = strings.Contains(request, `"framing":"binary"`)
	x.send(request + "\n")
	return x
}

// shRequest is the request to run a shell script; more are further fields.
func shRequest(script string, more ...string) string {
	command, err := json.Marshal([]string{"sh", "-c", script})
	if err != nil {
		panic(err)
	}
	return `{"command":` + string(command) + strings.Join(append([]string{""}, more...), ",") + "}"
}

type frame struct {
	Type     string  `json:"type"`
	Data     []byte  `json:"data"`
	ExitCode int     `json:"exit_code"`
	Error    string  `json:"error"`
	Signal   int     `json:"signal"`
	TimedOut bool    `json:"timed_out"`
	PID      int     `json:"pid"`
	ID       string  `json:"id"`
	Offset   *uint64 `json:"offset"`
}

var binaryTypes = map[byte]string{2: "stdout", 3: "stderr"}

// frame reads the next frame.
func (x *execution) frame() frame {
	x.t.Helper()
	var f frame
	text := ""
	if x.binary {
		var h [5]byte
		if _, err := io.ReadFull(x.r, h[:]); err != nil {
			x.t.Fatalf("cannot read a frame: %v", err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(h[1:]))
		if _, err := io.ReadFull(x.r, payload); err != nil {
			x.t.Fatalf("cannot read a frame: %v", err)
		}
		if typ := binaryTypes[h[0]]; typ != "" {
			return frame{Type: typ, Data: payload}
		}
		if h[0] != 4 {
			x.t.Fatalf("got a frame of kind %d with %.100q", h[0], payload)
		}
		text = string(payload)
	} else {
		text = x.line()
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		x.t.Fatalf("cannot read frame %.200q: %v", text, err)
	}
	return f
}

// An outcome is what a session amounts to.
type outcome struct {
	stdout, stderr string
	exit           frame
}

// finish reads to the end of the session: one exit frame, and then nothing.
func (x *execution) finish() outcome {
	x.t.Helper()
	var o outcome
	var stdout, stderr strings.Builder
	for {
		f := x.frame()
		switch f.Type {
		case "stdout":
			stdout.Write(f.Data)
		case "stderr":
			stderr.Write(f.Data)
		case "exit":
			x.expectEnd()
			o.stdout, o.stderr, o.exit = stdout.String(), stderr.String(), f
			return o
		default:
			x.t.Fatalf("got a frame of type %q", f.Type)
		}
	}
}

// awaitOutput reads output frames until together they contain text.
func (x *execution) awaitOutput(text string) string {
	x.t.Helper()
	var got strings.Builder
	for !strings.Contains(got.String(), text) {
		f := x.frame()
		if f.Type != "stdout" && f.Type != "stderr" {
			x.t.Fatalf("got %+v after %q, want output with %q", f, got.String(), text)
		}
		got.Write(f.Data)
	}
	return got.String()
}

// input sends an input frame in JSON.
func (x *execution) input(text string) {
	x.t.Helper()
	if x.binary {
		x.binaryFrame(4, []byte(text))
		return
	}
	x.send(text + "\n")
}

func (x *execution) binaryFrame(kind byte, payload []byte) {
	x.t.Helper()
	b := binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(payload)))
	x.send(string(append(b, payload...)))
}

func (x *execution) stdin(data string) {
	x.t.Helper()
	if x.binary {
		x.binaryFrame(1, []byte(data))
		return
	}
	x.send(fmt.Sprintf(`{"type":"stdin","data":%q}`+"\n", base64.StdEncoding.EncodeToString([]byte(data))))
}

func (x *execution) eof() { x.t.Helper(); x.input(`{"type":"eof"}`) }

// shutDown says that nothing more is sent.
func (x *execution) shutDown() {
	x.t.Helper()
	if err := x.Conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		x.t.Fatal(err)
	}
}

// awaitGone waits until no process has mark among its arguments.
func awaitGone(t testing.TB, mark string) {
	t.Helper()
	eventually(t, "end of the processes with "+mark, func() bool { return running(t, mark) == 0 })
}

// stuck reports whether our kernel holds bytes that the agent does not take.
func (x *execution) stuck() bool {
	rc, err := x.Conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		x.t.Fatal(err)
	}
	writable := false
	if err := rc.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, 50)
		writable = err != nil || n > 0
	}); err != nil {
		x.t.Fatal(err)
	}
	return !writable
}

// fill sends stdin until the agent takes no more.
func (x *execution) fill() {
	x.t.Helper()
	if err := x.SetWriteDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		x.t.Fatal(err)
	}
	for {
		if _, err := x.Write(stdinFrame(x, 1<<20)); err != nil {
			return
		}
	}
}
