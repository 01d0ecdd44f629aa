package vmtest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// A guest is a machine whose agent has answered, and a client of that.
type guest struct {
	vm.Machine
	*bouvet.AgentClient
	e *env
}

// boot makes a machine and waits for its agent.
func (e *env) boot(c vm.Config) *guest {
	e.Helper()
	return e.connect(e.create(c))
}

// connect waits for the agent of m.
func (e *env) connect(m vm.Machine) *guest {
	e.Helper()
	c, err := bouvet.Connect(e.context(), m, &bouvet.ClientOptions{ConnectTimeout: bound, RPCTimeout: bound})
	if err != nil {
		e.Fatalf("agent does not answer: %v", err)
	}
	e.Cleanup(func() { _ = c.Close() })
	return &guest{Machine: m, AgentClient: c, e: e}
}

// sh runs a script, which must succeed, and returns its output without the last
// newline.
func (g *guest) sh(script string) string {
	g.e.Helper()
	out, err := g.try(script)
	if err != nil {
		g.e.Fatalf("%.200s: %v: %.2000s", script, err, out)
	}
	return out
}

// try runs a script and returns its output and errors without the last newline.
func (g *guest) try(script string) (string, error) {
	out, err := g.Command(g.e.context(), "sh", "-c", script).CombinedOutput()
	return strings.TrimSuffix(string(out), "\n"), err
}

// hostile is try of a script that would harm the host if it ran there.
func (g *guest) hostile(script string) (string, error) {
	g.e.Helper()
	g.e.sandboxed()
	g.apart()
	return g.try(script)
}

// apart makes sure that the guest is not this host.
func (g *guest) apart() {
	g.e.Helper()
	const marker = "/proc/sys/kernel/random/boot_id"
	ours, err := os.ReadFile(marker)
	if err != nil {
		g.e.Fatal(err)
	}
	if theirs, err := g.ReadBytes(g.e.context(), marker); err == nil && bytes.Equal(ours, theirs) {
		g.e.Fatal("the guest runs on this host's kernel: a hostile test must not run there")
	}
	info, err := g.Info(g.e.context())
	if err != nil {
		g.e.Fatal(err)
	}
	if info.PID == os.Getpid() {
		g.e.Fatal("the agent runs in this process: a hostile test must not run there")
	}
}

// tempDir makes a directory in the guest; it is removed at the end, for that may
// be on this host.
func (g *guest) tempDir() string {
	g.e.Helper()
	dir := g.sh("mktemp -d")
	g.e.Cleanup(func() {
		if err := g.Remove(g.e.context(), dir); err != nil && !errors.Is(err, vm.ErrGone) {
			g.e.Errorf("cannot clear up in the guest: %v", err)
		}
	})
	return dir
}

// ping fails unless the agent answers.
func (g *guest) ping() {
	g.e.Helper()
	if err := g.Ping(g.e.context()); err != nil {
		g.e.Fatalf("ping: %v", err)
	}
}

// busy has the agent answer pings for a while, and fails if it misses one.
func (g *guest) busy(d time.Duration) {
	g.e.Helper()
	over, cancel := context.WithTimeout(g.e.context(), d)
	defer cancel()
	for over.Err() == nil {
		g.ping()
	}
}
