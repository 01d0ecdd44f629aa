package vmtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync/atomic"
)

var isolationSections = []section{
	{"T41 two machines", isolated},
	{"T54 base image", baseImage},
	{"T40 no network", noNetwork},
	{"T41 nothing of the host", nothingOfHost},
}

// Machines share neither files nor processes nor names.
func isolated(e *env) {
	e.sandboxed()
	a, b := e.boot(e.config()), e.boot(e.config())
	secret := fmt.Sprintf("secret of %s", a.ID())
	if err := a.WriteFile(e.context(), "/tmp/secret", secret); err != nil {
		e.Fatal(err)
	}
	a.sh("echo " + secret + " > /etc/planted; echo " + secret + " > /dev/shm/planted; hostname hijacked 2>/dev/null || true")
	c := a.Command(e.context(), "sleep", "4711.5")
	if err := c.Start(); err != nil {
		e.Fatal(err)
	}
	for _, path := range []string{"/tmp/secret", "/etc/planted", "/dev/shm/planted"} {
		if got, err := b.ReadFile(e.context(), path); err == nil {
			e.Errorf("%s of another machine was read: %q", path, got)
		}
	}
	if got := b.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); strings.Contains(got, "4711.5") {
		e.Errorf("a process of another machine is seen: %q", got)
	}
	if got := b.sh("hostname"); got != b.ID() {
		e.Errorf("host name: got %q, want %q", got, b.ID())
	}
	_, _ = b.hostile("kill -9 -1")
	if got := a.running(c.PID()); len(got) != 1 {
		e.Error("a process was killed from another machine")
	}
	e.destroy(b)
	a.ping()
}

// Whatever root does in a guest, the image under it and a sibling's view of that
// stay as they were. What is read-only must be so by the host's doing (CVE-2026-24834).
func baseImage(e *env) {
	e.sandboxed()
	before := imageDigest(e)
	g := e.boot(e.config())
	for _, script := range []string{
		"echo evil > /etc/passwd",
		"rm -rf /usr/share/doc /usr/bin/python3",
		"mount -o remount,rw /; echo evil > /etc/planted",
		"for m in $(cut -d' ' -f2 /proc/mounts); do mount -o remount,rw $m; echo evil > $m/planted; done",
		"echo evil > /.bouvet/agent; mv /.bouvet/agent /.bouvet/x; rm -f /.bouvet/agent",
		"for n in 0 1 2 8 16 253 254; do for m in 0 1 16; do mknod /tmp/b$n.$m b $n $m && head -c 65536 /dev/zero > /tmp/b$n.$m; done; done",
		"for d in /dev/vd* /dev/sd* /dev/nvme* /dev/loop* /dev/pmem* /dev/mem; do test -e $d && head -c 65536 /dev/zero > $d; done",
		"for f in /proc/1/fd/*; do timeout 2 dd if=/dev/zero of=$f bs=64k count=1 oflag=nonblock; done",
	} {
		_, _ = g.hostile(script + " 2>/dev/null; true")
	}
	sibling := e.boot(e.config())
	if got, err := sibling.ReadFile(e.context(), "/etc/passwd"); err != nil || !strings.HasPrefix(got, "root:") {
		e.Errorf("a sibling's /etc/passwd: got %.80q, %v", got, err)
	}
	sibling.sh("test ! -e /etc/planted && python3 -c 'print()' && test -x /.bouvet/agent")
	e.destroy(g)
	if after := imageDigest(e); after != before {
		e.Errorf("the image has changed from %x to %x", before, after)
	}
}

func imageDigest(e *env) [sha256.Size]byte {
	e.Helper()
	f, err := os.Open(e.s.Image)
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		e.Fatal(err)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// A guest without a network reaches neither the host's loopback nor its addresses.
func noNetwork(e *env) {
	e.sandboxed()
	g := e.boot(e.config())
	if got := g.sh("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '"); got != "lo" {
		e.Errorf("devices: got %q, want lo", got)
	}
	var accepted atomic.Int64
	for _, host := range e.hostAddresses() {
		var config net.ListenConfig
		l, err := config.Listen(e.context(), "tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			continue // an address that nothing can be bound to
		}
		stop := context.AfterFunc(e.context(), func() { _ = l.Close() })
		e.Cleanup(func() { stop(); _ = l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				accepted.Add(1)
				_ = conn.Close()
			}
		}()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			e.Fatal(err)
		}
		if out, err := g.try("timeout 5 bash -c 'exec 3<>/dev/tcp/" + host + "/" + port + "'"); err == nil {
			e.Errorf("%s port %s was reached: %s", host, port, out)
		}
	}
	if n := accepted.Load(); n > 0 {
		e.Errorf("the host accepted %d connections of the guest", n)
	}
	g.ping()
}

func (e *env) hostAddresses() []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		e.Fatal(err)
	}
	var hosts []string
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			hosts = append(hosts, n.IP.String())
		}
	}
	return hosts
}

// The host's files, processes and sockets are not there.
func nothingOfHost(e *env) {
	e.sandboxed()
	g := e.boot(e.config())
	planted := e.TempDir() + "/planted"
	if err := os.WriteFile(planted, []byte("host"), 0o600); err != nil {
		e.Fatal(err)
	}
	for _, path := range []string{planted, "/proc/1/root" + planted, "/proc/self/root" + planted, "/../.." + planted} {
		if got, err := g.ReadBytes(e.context(), path); err == nil {
			e.Errorf("%s of the host was read: %q", path, got)
		}
	}
	ours, err := os.ReadFile("/proc/self/cmdline")
	if err != nil {
		e.Fatal(err)
	}
	theirs := g.sh("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'")
	if name, _, _ := bytes.Cut(ours, []byte{0}); strings.Contains(theirs, string(name)) {
		e.Errorf("this very test is seen in the guest: %q", theirs)
	}
	// A guest's own kernel has threads, which have no command line.
	if got := g.sh("grep -ls . /proc/[0-9]*/cmdline | wc -l"); len(got) > 1 {
		e.Errorf("got %s processes in a fresh guest", got)
	}
}
