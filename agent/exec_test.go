package agent_test

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
)

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

const exitZero = `{"type":"exit","exit_code":0,"error":""}`

func stdoutLine(s string) string { return `{"type":"stdout","data":"` + b64(s) + `"}` }

// refusal is what a request that is not carried out gets (2.9 rule 3, L18).
func refusal(text string) []string {
	return []string{
		`{"type":"stderr","data":"` + b64(text+"\n") + `"}`,
		`{"type":"exit","exit_code":1,"error":` + quoted(text) + `}`,
	}
}

func quoted(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\"`) + `"` }

// The answers of protocol checklist 2.10, or the better ones of 2.9 and 2.11, to
// the byte. J1, J2, J6, L17, L18, 2.9 rule 1: no frame and no field that an old host does
// not know.
func TestExecGolden(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for _, c := range []struct {
		name, request string
		want          []string
	}{
		{"true", `{"command":["true"]}`, []string{exitZero}},
		{"output and code", shRequest("printf hi; exit 5"), []string{stdoutLine("hi"), `{"type":"exit","exit_code":5,"error":""}`}},
		{"stderr", shRequest("printf no >&2"), []string{`{"type":"stderr","data":"` + b64("no") + `"}`, exitZero}},
		{"spawn failure", `{"command":["/no"]}`, refusal("fork/exec /no: no such file or directory")},
		{"no such program", `{"command":["no-such-program"]}`, refusal(`exec: "no-such-program": executable file not found in $PATH`)},
		{"no command", `{}`, refusal("missing command")},
		{"empty command", `{"command":[]}`, refusal("missing command")},
		{"blank command", `{"command":[" "]}`, refusal("missing command executable")},
		{"bad dir", `{"command":["true"],"dir":"/nope"}`, refusal("chdir /nope: no such file or directory")},
		{"signal", shRequest("kill -9 $$"), []string{`{"type":"exit","exit_code":-1,"error":"signal: killed"}`}},
		{"blank lines before the request", "\n \r\n" + `{"command":["true"]}`, []string{exitZero}},
		{"unknown fields", `{"command":["true"],"closed_env":true,"workspace_access":{"a":[1]}}`, []string{exitZero}},
		{"dir and env (J2)", shRequest(`printf %s "$PWD-$A"`, `"dir":"/usr"`, `"env":["A=1","A=2"]`), []string{stdoutLine("/usr-2"), exitZero}},
		{"no shell is involved", `{"command":["printf","%s","$HOME; *"]}`, []string{stdoutLine("$HOME; *"), exitZero}},
		{"entropy_seed (J3)", `{"command":["true"],"entropy_seed":"` + b64("seed") + `"}`, []string{exitZero}},
		{"exit frame has no extension", shRequest("exit 3", `"timeout_ms":60000`, `"user":"0"`), []string{`{"type":"exit","exit_code":3,"error":""}`}},
		{"timeout", shRequest("sleep 600", `"timeout_ms":50`), []string{`{"type":"exit","exit_code":-1,"error":"timed out after 50ms"}`}},
		{"unknown user", `{"command":["true"],"user":"no-such-user"}`, refusal(`unknown user "no-such-user"`)},
		{"unknown attach", `{"attach":"nobody"}`, refusal(`no detached process has id "nobody"`)},
		{"unknown framing", `{"command":["true"],"framing":"x"}`, refusal(`framing "x" is not known`)},
		{"NUL in argv (T10)", `{"command":["echo","a\u0000b"]}`, refusal("a NUL byte is not allowed in command, env, dir or user")},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := execute(t, socket, c.request)
			var got []string
			for len(got) == 0 || !strings.HasPrefix(got[len(got)-1], `{"type":"exit"`) {
				got = append(got, x.line())
			}
			x.expectEnd()
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

// T17, C6: what is not a request gets a typed refusal and no more.
func TestExecBadRequests(t *testing.T) {
	socket := startServer(t, agent.Options{})
	for _, c := range []struct{ name, request, want string }{
		{"not JSON", `{"command":nope}`, ""},
		{"wrong type", `{"command":"true"}`, ""},
		{"a key twice", `{"command":["true"],"command":["false"]}`, "twice"},
		{"invalid UTF-8", "{\"command\":[\"\xff\"]}", "UTF-8"},
		{"nested too deep", `{"command":["true"],"x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "deep"},
		{"2.9 rule 5 upper-case names only", `{"COMMAND":["true"]}`, "missing command"},
		{"bad id", `{"command":["true"],"id":"a/b"}`, "an id has"},
		{"attach with a command", `{"command":["true"],"attach":"a"}`, "attach takes no command"},
		{"too long", `{"command":["` + strings.Repeat("x", 14<<20) + `"]}`, "line too long"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := execute(t, socket, c.request).finish()
			if o.exit.ExitCode != 1 || o.exit.Error == "" || o.stderr != o.exit.Error+"\n" || !strings.Contains(o.exit.Error, c.want) {
				t.Errorf("got %+v, want an error with %q on stderr and in the exit frame", o, c.want)
			}
		})
	}
	t.Run("binary framing is kept for the refusal", func(t *testing.T) {
		o := execute(t, socket, `{"command":[],"framing":"binary"}`).finish()
		if o.exit.Error != "missing command" || o.exit.ExitCode != 1 || o.stderr != "missing command\n" {
			t.Errorf("got %+v, want the refusal in binary frames", o)
		}
	})
	t.Run("request without an end", func(t *testing.T) {
		x := connectExec(t, socket)
		x.send(`{"command":["true"]}`)
		x.shutDown()
		if o := x.finish(); o.exit.ExitCode != 1 || o.exit.Error == "" {
			t.Errorf("got %+v, want a refusal", o)
		}
	})
	t.Run("no request", func(t *testing.T) {
		x := connectExec(t, socket)
		x.shutDown()
		x.expectEnd()
	})
}
