package bench

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// BenchmarkCreate: from nothing to the first answered ping, against a bare
// `runsc run` of the same agent and image by the same binary. No image is copied
// (2.11 no. 4).
func BenchmarkCreate(b *testing.B) {
	m := manager(b)
	first := create(b, m, bouvet.Config{})
	bundle := bundleOf(b, first.ID().String())
	if err := m.Destroy(context.Background(), first.ID()); err != nil {
		b.Fatal(err)
	}
	once(b, func() {
		var ours, bare, destroy []time.Duration
		for range rounds {
			begin := time.Now()
			s := create(b, m, bouvet.Config{})
			ours = append(ours, time.Since(begin))
			begin = time.Now()
			if err := m.Destroy(context.Background(), s.ID()); err != nil {
				b.Fatal(err)
			}
			destroy = append(destroy, time.Since(begin))
			bare = append(bare, bareRun(b, bundle))
		}
		report(b, ours, bare, "runsc")
		b.ReportMetric(float64(median(destroy).Microseconds())/1e3, "destroy-ms")
	})
}

// bundleOf copies the OCI specification that the driver made for a sandbox.
func bundleOf(b *testing.B, id string) string {
	b.Helper()
	state, err := statedir.Default()
	if err != nil {
		b.Fatal(err)
	}
	spec, err := os.ReadFile(filepath.Join(state, "machines", id, "bundle", "config.json"))
	if err != nil {
		b.Fatal(err)
	}
	dir := b.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rootfs"), 0o700); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), spec, 0o600); err != nil {
		b.Fatal(err)
	}
	return dir
}

// bareRun times `runsc run` from its start to the agent's answer to a ping, on
// the same kind of channel, without a cgroup, a record or a lock.
func bareRun(b *testing.B, bundle string) time.Duration {
	b.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.Fatal(err)
	}
	host, guest := os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "guest")
	conn, err := net.FileConn(host)
	_ = host.Close()
	if err != nil {
		b.Fatal(err)
	}
	root := b.TempDir()
	console, err := os.OpenFile(filepath.Join(root, "console"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	// The sentry ends with the write end of its standard input, as the driver's
	// does, and begins with its first byte.
	stdin, life, err := os.Pipe()
	if err == nil {
		_, err = life.Write([]byte{'\n'})
	}
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = life.Close() }()
	begin := time.Now()
	cmd := exec.Command(binary(b, "bouvet"))
	cmd.Args = []string{
		"runsc", "--root=" + root, "--network=none", "--directfs=false", "--ignore-cgroups", "--host-settings=ignore",
		"run", "-pass-fd=3:3", "-bundle=" + bundle, uuid.NewString(),
	}
	cmd.Env = []string{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, console, console
	cmd.ExtraFiles = []*os.File{guest}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	for _, f := range []*os.File{guest, stdin, console} {
		_ = f.Close()
	}
	mux := vsock.NewMux(conn.(*net.UnixConn))
	ping(b, mux)
	took := time.Since(begin)
	_ = mux.Close()
	_ = cmd.Wait() // the agent sees the end of its channel
	return took
}

// ping asks once, as a client does.
func ping(b *testing.B, mux *vsock.Mux) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := mux.Dial(ctx, wire.PortRPC)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n")); err != nil {
		b.Fatal(err)
	}
	line, err := wire.NewLineReader(conn, wire.MaxHandshakeLine*4, nil).ReadLine()
	if err != nil || !bytes.Contains(line, []byte(`"pong":true`)) {
		b.Fatal(string(line), err)
	}
}

// BenchmarkExec: `true` through Sandbox.Command and through Sandbox.Execute's
// JSON-RPC, against fork, exec and wait of the same program timed inside.
func BenchmarkExec(b *testing.B) {
	m := manager(b)
	s := create(b, m, bouvet.Config{MemoryMiB: 512})
	ctx := context.Background()
	upload(b, s, build(b, "./spawn"), "/tmp/spawn")
	once(b, func() {
		var stream, call, inside []time.Duration
		for range rounds {
			begin := time.Now()
			if err := s.Command(ctx, "/bin/true").Run(); err != nil { //nolint:contextcheck // Command has it.
				b.Fatal(err)
			}
			stream = append(stream, time.Since(begin))
			begin = time.Now()
			if _, err := s.Execute(ctx, "exec /bin/true"); err != nil {
				b.Fatal(err)
			}
			call = append(call, time.Since(begin))
			out, err := s.Command(ctx, "/tmp/spawn", "3", "/bin/true").Output() //nolint:contextcheck // Command has it.
			if err != nil {
				b.Fatal(err)
			}
			// The first of a fresh process pays for that, too: the last counts.
			lines := strings.Fields(string(out))
			n, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			inside = append(inside, time.Duration(n))
		}
		report(b, stream, inside, "inside")
		b.ReportMetric(float64(median(call).Microseconds())/1e3, "rpc-sh-ms")
	})
}

// build builds a static program for a guest.
func build(b *testing.B, pkg string) string {
	b.Helper()
	out := filepath.Join(b.TempDir(), "program")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", out, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		b.Fatal(err, string(msg))
	}
	return out
}

func upload(b *testing.B, s *bouvet.Sandbox, from, to string) {
	b.Helper()
	f, err := os.Open(from)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := s.Client().Upload(context.Background(), to, f, &bouvet.FileOptions{Mode: 0o755}); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkIdleMemory: what 50 idle sandboxes take of the host's memory, each.
func BenchmarkIdleMemory(b *testing.B) {
	const count = 50
	m := manager(b)
	for range count {
		create(b, m, bouvet.Config{})
	}
	once(b, func() {
		var pss int64
		for _, id := range m.List() {
			pss += machinePSS(b, id.String())
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(pss)/count/(1<<20), "MiB-PSS/sandbox")
	})
}

// machinePSS adds up the proportional set sizes of all processes that belong to
// a machine: those whose arguments name its directory, and their descendants.
func machinePSS(b *testing.B, id string) int64 {
	b.Helper()
	parents := map[int]int{}
	var roots []int
	entries, err := os.ReadDir("/proc")
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if bytes.Contains(cmdline, []byte(id)) {
			roots = append(roots, pid)
		}
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if i := bytes.LastIndexByte(stat, ')'); i > 0 {
			fields := strings.Fields(string(stat[i+1:]))
			parents[pid], _ = strconv.Atoi(fields[1])
		}
	}
	if len(roots) == 0 {
		b.Fatalf("no process of sandbox %s", id)
	}
	mine := map[int]bool{}
	for _, pid := range roots {
		mine[pid] = true
	}
	for grew := true; grew; {
		grew = false
		for pid, parent := range parents {
			if mine[parent] && !mine[pid] {
				mine[pid], grew = true, true
			}
		}
	}
	var total int64
	for pid := range mine {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		for line := range strings.Lines(string(data)) {
			if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
				kib, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				total += kib << 10
			}
		}
	}
	return total
}
