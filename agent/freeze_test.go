package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/wire"
)

// A system records what is renewed, in order, and fails where it is told to.
type system struct {
	mu   sync.Mutex
	log  []string // guarded by mu
	fail string
}

func (y *system) note(what string) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.log = append(y.log, what)
	if strings.HasPrefix(what, y.fail) && y.fail != "" {
		return errors.New("told to fail")
	}
	return nil
}

func (y *system) take() string {
	y.mu.Lock()
	defer y.mu.Unlock()
	defer func() { y.log = nil }()
	return strings.Join(y.log, ", ")
}

func (y *system) Sync() error                  { return y.note("sync") }
func (y *system) AddEntropy(seed []byte) error { return y.note(fmt.Sprintf("entropy %d", len(seed))) }

func (y *system) SetClock(now time.Time) error {
	return y.note("clock " + now.UTC().Format("2006-01-02"))
}

func (y *system) SetHostname(name string) error {
	return y.note("host name " + name)
}
func (y *system) RenewMachineID() error { return y.note("machine-id") }
func (y *system) ForgetSeed() error     { return y.note("random seed") }

const day = 24 * int64(time.Hour)

func thaw(change m) m {
	p := m{"entropy": make([]byte, 64), "unix_ns": 365 * day}
	maps.Copy(p, change)
	return p
}

// A guest that is frozen changes nothing and says so; it reads, and pings.
func TestFreezeRefusals(t *testing.T) {
	socket := startServer(t, agent.Options{System: &system{}})
	dir := t.TempDir()
	c := dial(t, socket)
	if got := must[wire.FreezeResult](c, wire.MethodFreeze, nil); got.Stopped != 0 {
		t.Errorf("froze %d processes, want none", got.Stopped)
	}
	for method, params := range map[string]m{
		wire.MethodExec:      {"cmd": "true"},
		wire.MethodExecCode:  {"lang": "sh", "code": "true"},
		wire.MethodWriteFile: {"path": dir + "/new", "content": "x"},
		wire.MethodMakeDir:   {"path": dir + "/new"},
		wire.MethodMove:      {"from": dir, "to": dir + "2"},
		wire.MethodRemove:    {"path": dir},
		wire.MethodUpload:    {"path": dir + "/new"},
	} {
		refuse(c, int(wire.CodeFrozen), "frozen for a snapshot", method, params)
	}
	must[wire.PingResult](c, wire.MethodPing, nil)
	if got := must[wire.ListDirResult](c, wire.MethodListDir, m{"path": dir}); len(got.Entries) != 0 {
		t.Errorf("something was made: %v", got)
	}
	x := dial(t, socket)
	x.send("CONNECT 10700\n" + `{"command":["true"]}` + "\n")
	if ok, refusal, exit := x.line(), x.line(), x.line(); !strings.Contains(exit, "frozen for a snapshot") || !strings.Contains(exit, `"exit_code":1`) {
		t.Errorf("exec: got %q, %q, %q", ok, refusal, exit)
	}
	must[wire.Empty](c, wire.MethodThaw, thaw(nil))
	if got := must[wire.ExecResult](c, wire.MethodExec, m{"cmd": "echo up"}); got.Stdout != "up\n" {
		t.Errorf("after the thaw: %+v", got)
	}
}

// What a thaw renews, in which order, and what it refuses.
func TestThaw(t *testing.T) {
	y := &system{}
	c := dial(t, startServer(t, agent.Options{System: y}))
	must[wire.FreezeResult](c, wire.MethodFreeze, nil)
	if got := y.take(); got != "sync" {
		t.Errorf("freeze did: %s", got)
	}
	const all = "entropy 64, clock 1971-01-01, host name web-1, machine-id, random seed"
	for _, tt := range []struct {
		name   string
		params m
		want   string
	}{
		{"the original", thaw(nil), "entropy 64, clock 1971-01-01"},
		{"T30 a clone", thaw(m{"hostname": "web-1", "clone": true}), all},
		{"one that is not frozen", thaw(m{"hostname": "web-1", "clone": true}), all},
		{"most entropy", thaw(m{"entropy": make([]byte, 512)}), "entropy 512, clock 1971-01-01"},
	} {
		// A connection of its own: that of a clone's freeze ends.
		c := dialAgain(t, c)
		must[wire.Empty](c, wire.MethodThaw, tt.params)
		if got := y.take(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
	c = dialAgain(t, c)
	for text, params := range map[string]m{
		"entropy of 0":          thaw(m{"entropy": nil}),
		"entropy of 31":         thaw(m{"entropy": make([]byte, 31)}),
		"entropy of 513":        thaw(m{"entropy": make([]byte, 513)}),
		"unix_ns of 0":          thaw(m{"unix_ns": 0}),
		`hostname "a\nb"`:       thaw(m{"hostname": "a\nb"}),
		`hostname "xxxxxxxxxxx`: thaw(m{"hostname": strings.Repeat("x", 65)}),
	} {
		refuse(c, int(wire.CodeInvalidParams), text, wire.MethodThaw, params)
	}
	if got := y.take(); got != "" {
		t.Errorf("a refused thaw did: %s", got)
	}
}

// dialAgain connects to the agent of c.
func dialAgain(t *testing.T, c *client) *client { return dial(t, c.RemoteAddr().String()) }

// A part that fails is named, and nothing goes on.
func TestThawFails(t *testing.T) {
	for _, part := range []string{"entropy", "clock", "host name", "machine-id", "random seed"} {
		y := &system{fail: part}
		c := dial(t, startServer(t, agent.Options{System: y}))
		must[wire.FreezeResult](c, wire.MethodFreeze, nil)
		refuse(c, int(wire.CodeInternal), "cannot thaw: "+part+": told to fail", wire.MethodThaw, thaw(m{"hostname": "x", "clone": true}))
		refuse(c, int(wire.CodeFrozen), "frozen", wire.MethodExec, m{"cmd": "true"})
		y.fail = ""
		must[wire.Empty](c, wire.MethodThaw, thaw(nil))
	}
	y := &system{fail: "sync"}
	c := dial(t, startServer(t, agent.Options{System: y}))
	refuse(c, int(wire.CodeInternal), "cannot freeze: told to fail", wire.MethodFreeze, nil)
	must[wire.ExecResult](c, wire.MethodExec, m{"cmd": "true"}) // it is not frozen
}

// In a copy the commands of the old host end and detached ones go on; in the original
// all of them do.
func TestThawCommands(t *testing.T) {
	for _, clone := range []bool{false, true} {
		t.Run(fmt.Sprintf("clone %t", clone), func(t *testing.T) {
			socket := startServer(t, agent.Options{System: &system{}})
			attached, detached := marker(t)+"1", marker(t)+"2"
			a, d, c := dial(t, socket), dial(t, socket), dial(t, socket)
			a.send("CONNECT 10700\n" + `{"command":["sleep","` + attached + `"],"started":true}` + "\n")
			d.send("CONNECT 10700\n" + `{"command":["sleep","` + detached + `"],"started":true,"detach":true,"id":"d"}` + "\n")
			for _, x := range []*client{a, d} {
				x.line()
				if got := x.line(); !strings.Contains(got, `"started"`) {
					t.Fatalf("got %q", got)
				}
			}
			if got := must[wire.FreezeResult](c, wire.MethodFreeze, nil); got.Stopped != 2 {
				t.Errorf("froze %d processes, want 2", got.Stopped)
			}
			fresh := dial(t, socket)
			must[wire.Empty](fresh, wire.MethodThaw, thaw(m{"clone": clone}))
			want := 1
			if clone {
				want = 0
				a.expectEnd()
				d.expectEnd()
			}
			if got := running(t, attached); got != want {
				t.Errorf("%d attached commands run, want %d", got, want)
			}
			again := dial(t, socket)
			again.send("CONNECT 10700\n" + `{"attach":"d","started":true}` + "\n")
			again.line()
			if got := again.line(); !strings.Contains(got, `"started"`) {
				t.Errorf("attach: got %q", got)
			}
			endMarked(t, detached)
			if got := again.line(); !strings.Contains(got, `"exit"`) {
				t.Errorf("its end: got %q", got)
			}
		})
	}
}
