package wiretest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/wire/wiretest"
)

func send(t *testing.T, w io.Writer, text string) {
	t.Helper()
	if _, err := io.WriteString(w, text); err != nil {
		t.Errorf("cannot write: %v", err)
	}
}

// play runs script against other and returns the script's verdict.
func play(t *testing.T, script string, other func(c *net.UnixConn)) error {
	t.Helper()
	testutil.Ledger(t, testutil.Scope{})
	s, err := wiretest.Parse(script)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := wiretest.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	verdict := make(chan error, 1)
	go func() { verdict <- s.Run(ctx, ours) }()
	_ = theirs.SetDeadline(time.Now().Add(10 * time.Second))
	other(theirs)
	_ = theirs.Close()
	return <-verdict
}

func TestWritingSteps(t *testing.T) {
	const script = `
		# a comment
		> a line
		>> no line;\x00\x7f\t\\ "\u00e9"
		bytes 00ff 10
		repeat 3 ab
		repeat 2K x
		drip 1us drop
		garbage 4 7
		garbage 4 7
		close
	`
	var got []byte
	if err := play(t, script, func(c *net.UnixConn) { got, _ = io.ReadAll(c) }); err != nil {
		t.Fatal(err)
	}
	want := "a line\nno line;\x00\x7f\t\\ \"\\u00e9\"\x00\xff\x10ababab" + strings.Repeat("x", 2048) + "drop\n"
	body, tail := got[:len(got)-8], got[len(got)-8:]
	if string(body) != want {
		t.Errorf("got %q, want %q", body, want)
	}
	if !bytes.Equal(tail[:4], tail[4:]) {
		t.Errorf("garbage of the same seed: got % x and % x, want the same", tail[:4], tail[4:])
	}
}

func TestConversation(t *testing.T) {
	const script = `
		loop 3
		< "id":(?P<id>\d+),"method":"(?P<method>\w+)"
		> {"id":${id}1,"was":"${method}"}
	`
	err := play(t, script, func(c *net.UnixConn) {
		r := bufio.NewReader(c)
		for i := range 3 {
			send(t, c, fmt.Sprintf("{\"id\":%d,\"method\":\"m%d\"}\n", i, i))
			got, _ := r.ReadString('\n')
			if want := fmt.Sprintf("{\"id\":%d1,\"was\":\"m%d\"}\n", i, i); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("after the script: got %v, want EOF", err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestVerdicts(t *testing.T) {
	nothing := func(*net.UnixConn) {}
	for _, tc := range []struct {
		name, script string
		other        func(c *net.UnixConn)
		want         string // part of the error, empty for none
	}{
		{"line does not match", "\n< ^a$", func(c *net.UnixConn) { send(t, c, "b\n") }, `script line 2: want a line matching "^a$", got "b"`},
		{"end instead of line", "< a", nothing, "got \"\" and then: EOF"},
		{"half a line", "< a", func(c *net.UnixConn) { send(t, c, "aaa") }, `got "aaa" and then: EOF`},
		{"hang-up while writing", "repeat 1G x", nothing, "the other side hung up"},
		{"eof comes", "eof", func(c *net.UnixConn) { send(t, c, "whatever") }, ""},
		{"long line", "< ^x+$", func(c *net.UnixConn) { send(t, c, strings.Repeat("x", 1<<20)+"\n") }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := play(t, tc.script, tc.other)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("got %v, want %q in it", err, tc.want)
			}
		})
	}
}

func TestCloseWrite(t *testing.T) {
	err := play(t, "> a\nclosewrite\n< b", func(c *net.UnixConn) {
		got, err := io.ReadAll(c)
		if string(got) != "a\n" || err != nil {
			t.Errorf("got %q, %v, want a line and the end", got, err)
		}
		send(t, c, "b\n")
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestStallEndsWithContext(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	s, err := wiretest.Parse("> here\nstall")
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs, err := wiretest.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = theirs.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, ours) }()
	if line, err := bufio.NewReader(theirs).ReadString('\n'); line != "here\n" {
		t.Fatal(line, err)
	}
	select {
	case err := <-done:
		t.Fatalf("stall ended by itself: %v", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("got %v, want no error", err)
	}
}

func TestParseErrors(t *testing.T) {
	for script, want := range map[string]string{
		"> a\nfly":     "script line 2: unknown step \"fly\"",
		"< (":          "missing closing )",
		"bytes 0":      "odd length",
		"bytes zz":     "invalid byte",
		"repeat x y":   "\"x\" is not a count",
		"repeat -1 y":  "is not a count",
		"repeat 3":     "repeat wants a text",
		"garbage 3":    "invalid syntax",
		"drip fast a":  "invalid duration",
		"close it":     "close takes nothing",
		`> \x1`:        "two digits",
		`> \xzz`:       "two digits",
		"loop forever": "is not a count",
	} {
		if _, err := wiretest.Parse(script); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q in it", script, err, want)
		}
	}
}

func TestPeer(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	p := wiretest.NewPeer(t, "> first", "> other\nstall")
	for i, want := range []string{"first\n", "other\n", "other\n"} {
		c, err := p.Dial(t.Context(), uint32(52+i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if got, err := bufio.NewReader(c).ReadString('\n'); got != want {
			t.Errorf("dial %d: got %q, %v, want %q", i, got, err, want)
		}
	}
	if got := fmt.Sprint(p.Dials()); got != "[52 53 54]" {
		t.Errorf("got ports %s", got)
	}
}
