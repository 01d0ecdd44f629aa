package e2e

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/wire"
)

// T25: what runs in the guest has no way to the agent's channel, nor to any socket
// of the agent: it inherits none, finds none, and cannot take the agent's own.
func TestChannelIsOutOfReach(t *testing.T) {
	s := box(t, bouvet.Config{})
	const list = "for f in /proc/self/fd/*; do echo $(basename $f)=$(readlink $f); done"
	for name, c := range map[string]*bouvet.Cmd{
		"root":     s.Command(timed(t), "sh", "-c", list),
		"user":     s.Command(timed(t), "sh", "-c", list),
		"terminal": s.Command(timed(t), "sh", "-c", list),
	} {
		switch name {
		case "user":
			c.User = "user"
		case "terminal":
			c.TTY = true
		}
		out, err := c.Output()
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for line := range strings.FieldsSeq(string(out)) {
			fd, target, _ := strings.Cut(line, "=")
			if strings.Contains(target, "socket") || (len(fd) == 1 && fd > "2" && target != "") {
				t.Errorf("%s: a command inherits descriptor %s", name, line)
			}
		}
	}
	if r, err := s.Execute(timed(t), list); err != nil || strings.Contains(r.Stdout, "socket") {
		t.Errorf("over JSON-RPC: got %+v, %v", r, err)
	}
	if got := sh(t, s, "cat /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/unix 2>/dev/null | grep -vc 'sl\\|Num' || true"); got != "0" {
		t.Errorf("%s sockets are there to connect to", got)
	}
	for name, script := range map[string]string{
		"descriptors of the agent": "ls /proc/1/fd/",
		"memory of the agent":      "head -c 1 /proc/1/mem",
		"environment of the agent": "cat /proc/1/environ",
		"a signal to the agent":    "kill -9 1",
		"the agent's program":      "echo x >> /.bouvet/agent",
		"vsock": `python3 -c '
import socket
for cid in (1, 2, 3, 0xffffffff):
    for port in (52, 10700):
        try:
            s = socket.socket(40, socket.SOCK_STREAM); s.settimeout(2); s.connect((cid, port)); print("connected"); raise SystemExit(0)
        except OSError: pass
raise SystemExit(1)'`,
		"ports on loopback": `python3 -c '
import socket
for port in (52, 10700):
    try: socket.create_connection(("127.0.0.1", port), 2); raise SystemExit(0)
    except OSError: pass
raise SystemExit(1)'`,
	} {
		c := s.Command(timed(t), "sh", "-c", script)
		c.User = "user"
		if out, err := c.CombinedOutput(); err == nil {
			t.Errorf("an unprivileged user got at %s: %.200q", name, out)
		}
	}
	answers(t, s)
}

// Each sandbox has random numbers of its own, and takes a seed (J3).
func TestEntropy(t *testing.T) {
	ledger(t)
	m := open(t)
	seen := map[string]bool{}
	for range 3 {
		s := create(t, m, bouvet.Config{})
		for _, script := range []string{
			"head -c 32 /dev/urandom | sha256sum", "python3 -c 'import os, uuid; print(os.getrandom(32).hex(), uuid.uuid4())'",
			"cat /proc/sys/kernel/random/uuid",
		} {
			got := sh(t, s, script)
			if seen[got] {
				t.Errorf("%s: two sandboxes have the same random numbers: %s", script, got)
			}
			seen[got] = true
		}
		conn := dial(t, s, wire.PortExec)
		if _, err := io.WriteString(conn, `{"command":["head","-c","16","/dev/urandom"],"entropy_seed":"`+strings.Repeat("AAAA", 8)+`"}`+"\n"); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, exit := frames(t, bufio.NewReader(conn))
		if len(stdout) != 16 || len(stderr) > 0 || exit.ExitCode != 0 || seen[string(stdout)] {
			t.Errorf("with a seed: got %x, %q, %+v", stdout, stderr, exit)
		}
		seen[string(stdout)] = true
	}
}
