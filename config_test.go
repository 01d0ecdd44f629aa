package bouvet_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// E1, E2: every field is checked before anything is made.
func TestConfigValidate(t *testing.T) {
	valid := bouvet.Config{
		Language: "node", MemoryMiB: 512, VCPUs: 4, Timeout: time.Minute, KernelPath: "/vmlinux", RootfsPath: "/root.erofs",
		Hostname: "box", Env: []string{"A=b", "C="}, ConnectTimeout: time.Second, RPCTimeout: time.Second, StopGrace: -1,
	}
	for _, tt := range []struct {
		name   string
		change func(*bouvet.Config)
		text   string // "" is valid
	}{
		{"zero", func(c *bouvet.Config) { *c = bouvet.Config{} }, ""},
		{"full", func(*bouvet.Config) {}, ""},
		{"little memory", func(c *bouvet.Config) { c.MemoryMiB = 16 }, "memory of 16 MiB"},
		{"negative memory", func(c *bouvet.Config) { c.MemoryMiB = -1 }, "memory of -1 MiB"},
		{"many vcpus", func(c *bouvet.Config) { c.VCPUs = 1000 }, "1000 vCPUs"},
		{"negative timeout", func(c *bouvet.Config) { c.Timeout = -1 }, "timeout of -1ns"},
		{"negative connect timeout", func(c *bouvet.Config) { c.ConnectTimeout = -1 }, "connect timeout"},
		{"negative RPC timeout", func(c *bouvet.Config) { c.RPCTimeout = -1 }, "RPC timeout"},
		{"relative root", func(c *bouvet.Config) { c.RootfsPath = "root.erofs" }, `"root.erofs" is not an absolute path`},
		{"relative kernel", func(c *bouvet.Config) { c.KernelPath = "vmlinux" }, `"vmlinux" is not an absolute path`},
		{"NUL in path", func(c *bouvet.Config) { c.RootfsPath = "/a\x00b" }, "is not an absolute path"},
		{"image and root", func(c *bouvet.Config) { c.Image = "x" }, "both an image"},
		{"host name", func(c *bouvet.Config) { c.Hostname = "a b" }, `host name "a b"`},
		{"env without =", func(c *bouvet.Config) { c.Env = []string{"A"} }, `"A" is not KEY=value`},
		{"env without key", func(c *bouvet.Config) { c.Env = []string{"=b"} }, "is not KEY=value"},
		{"T10 NUL in env", func(c *bouvet.Config) { c.Env = []string{"A=\x00"} }, "is not KEY=value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := valid
			tt.change(&c)
			err := c.Validate()
			if tt.text == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, bouvet.ErrInvalidConfig) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want an invalid configuration: %s", err, tt.text)
			}
		})
	}
}

// E3: an ID has one form, is fit to name a machine, and is random.
func TestSandboxID(t *testing.T) {
	id := bouvet.NewSandboxID()
	if s := id.String(); len(s) != 36 || !vm.ValidID(s) || id == bouvet.NewSandboxID() {
		t.Errorf("got %q", s)
	}
	if parsed, err := bouvet.ParseSandboxID(id.String()); err != nil || parsed != id {
		t.Errorf("got %v, %v, want %v", parsed, err, id)
	}
	for _, s := range []string{
		"", "x", strings.ToUpper(id.String()), "{" + id.String() + "}", "urn:uuid:" + id.String(),
		strings.ReplaceAll(id.String(), "-", ""), "00000000-0000-0000-0000-000000000000", id.String() + "/..",
	} {
		if strings.ToUpper(s) == s && s == id.String() {
			continue
		}
		if got, err := bouvet.ParseSandboxID(s); err == nil {
			t.Errorf("%q was read as %v", s, got)
		}
	}
	b, err := json.Marshal(map[string]bouvet.SandboxID{"id": id})
	if want := `{"id":"` + id.String() + `"}`; err != nil || string(b) != want {
		t.Errorf("got %s, %v, want %s", b, err, want)
	}
	var back struct{ ID bouvet.SandboxID }
	if err := json.Unmarshal(b, &back); err != nil || back.ID != id {
		t.Errorf("got %v, %v, want %v", back.ID, err, id)
	}
}

// E5.
func TestStateNames(t *testing.T) {
	for state, want := range map[bouvet.State]string{
		bouvet.Creating: "creating", bouvet.Ready: "ready", bouvet.Executing: "executing",
		bouvet.Paused: "paused", bouvet.Destroyed: "destroyed", bouvet.State(99): "unknown", bouvet.State(-1): "unknown",
	} {
		if got := state.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
