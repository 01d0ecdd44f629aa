package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

// rpc calls a method of the real agent and returns its answer's line.
func rpc(t *testing.T, m vm.Machine, method string, params any) string {
	t.Helper()
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := m.Dial(testContext(t), wire.PortRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(testContext(t), func() { _ = conn.Close() })()
	if _, err := conn.Write(append(line, '\n')); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	for b := make([]byte, 64<<10); !strings.HasSuffix(string(answer), "\n"); {
		n, err := conn.Read(b)
		if answer = append(answer, b[:n]...); err != nil {
			t.Fatalf("%s: got %q, %v", method, answer, err)
		}
	}
	return string(answer)
}

// The real agent takes up a session with a copy's owner, and its thaw works in gVisor's
// kernel.
func TestAgentThawsInCopy(t *testing.T) {
	ledgered(t)
	d := testDriver(t)
	o := options(d)
	o.AgentImage = realAgent(t)
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	m := create(t, d, savable(t))
	sh := func(m vm.Machine, cmd string) string {
		t.Helper()
		got := rpc(t, m, wire.MethodExec, map[string]any{"cmd": cmd})
		var answer struct{ Result wire.ExecResult }
		if err := json.Unmarshal([]byte(got), &answer); err != nil || answer.Result.ExitCode != 0 {
			t.Fatalf("%s: got %s, %v", cmd, got, err)
		}
		return answer.Result.Stdout
	}
	thaw := func(m vm.Machine, clone bool) {
		t.Helper()
		seed := make([]byte, wire.MinEntropy)
		_, _ = rand.Read(seed)
		got := rpc(t, m, wire.MethodThaw, wire.ThawParams{Entropy: seed, UnixNS: time.Now().UnixNano(), Hostname: "thawed", Clone: clone})
		if strings.Contains(got, `"error"`) {
			t.Fatalf("thaw: got %s", got)
		}
	}
	sh(m, "(n=0; while :; do n=$((n+1)); echo $n >>/tmp/counts; sleep 0.01; done) >/dev/null 2>&1 &")
	identity := sh(m, "cat /etc/machine-id")
	if got := rpc(t, m, wire.MethodFreeze, nil); strings.Contains(got, `"error"`) {
		t.Fatalf("freeze: got %s", got)
	}
	dir := save(t, m)
	thaw(m, false)
	copied := restore(t, d, savable(t), dir)
	thaw(copied, true)
	for _, m := range []vm.Machine{m, copied} { // both go on counting, and none misses a number
		sh(m, "n=$(tail -n 1 /tmp/counts); until [ $(tail -n 1 /tmp/counts) -gt $((n+2)) ]; do sleep 0.01; done; "+
			"head -n $((n+2)) /tmp/counts | awk '$1 != NR { exit 1 }'")
	}
	if got := sh(m, "cat /etc/machine-id"); got != identity {
		t.Errorf("the machine's identity is now %s", got)
	}
	if got := sh(copied, "cat /etc/machine-id"); got == identity {
		t.Error("the copy has the machine's identity")
	}
	if got := sh(copied, "hostname"); got != "thawed\n" {
		t.Errorf("the copy's host name is %s", got)
	}
}
