package vmtest

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

var limitSections = []section{
	{"T02 memory", memoryLimit},
	{"T03 full disk", fullDisk},
	{"T04 processors", cpuLimit},
}

func (e *env) memoryLimited() {
	e.Helper()
	e.sandboxed()
	if !e.d.Features().MemoryLimit {
		e.Skip("this host lets the driver set no memory limit: run as root, or with a delegated cgroup")
	}
}

// A guest that takes more memory than it has loses a process, or ends and says
// why. Its neighbour does not notice.
func memoryLimit(e *env) {
	e.memoryLimited()
	g, neighbour := e.boot(e.config()), e.boot(e.config())
	kept := neighbour.Command(e.context(), "sleep", "4711")
	if err := kept.Start(); err != nil {
		e.Fatal(err)
	}
	// What was promised is there.
	g.sh("head -c 60000000 /dev/zero | tail -c 60000000 | wc -c")
	var bomb sync.WaitGroup
	bomb.Go(func() {
		out, err := g.hostile("python3 -c 'b = bytearray(1 << 30)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint(\"all of it\")'")
		if err == nil {
			e.Errorf("a machine of 128 MiB holds 1 GiB: %q", out)
		}
		if exit, ok := errors.AsType[*bouvet.ExitError](err); ok && exit.Signal == syscall.SIGKILL && !exit.OOMKilled {
			e.Errorf("got %#v, want it to say that memory ran out", exit)
		}
	})
	neighbour.busy(500 * time.Millisecond)
	bomb.Wait()
	if got := neighbour.running(kept.PID()); len(got) != 1 {
		e.Error("the neighbour lost a process")
	}
	// The end of the machine follows that of the call.
	settled := time.NewTimer(2 * time.Second)
	defer settled.Stop()
	select {
	case <-g.Done():
		err := g.Err()
		e.wantGone("Err", err)
		if !errors.Is(err, vm.ErrOutOfMemory) || !strings.Contains(err.Error(), "memory") {
			e.Errorf("Err: got %v, want it to say that memory ran out", err)
		}
	case <-settled.C:
		g.ping() // the guest's own kernel ended the process
	}
}

// A guest that fills its disk, or another place that it may write to, is told so,
// and lives.
func fullDisk(e *env) {
	e.memoryLimited()
	g := e.boot(e.config())
	for _, dir := range []string{"/", "/tmp/", "/dev/shm/"} {
		out, err := g.hostile("head -c 2000000000 /dev/zero > " + dir + "big")
		if err == nil || !strings.Contains(out, "No space left") {
			e.Errorf("%s: got %q, %v, want no space left", dir, out, err)
		}
		e.living(g)
		g.sh("rm " + dir + "big && echo back > " + dir + "small && cat " + dir + "small")
		g.ping()
	}
}

// A guest sees the processors it was given, and gets no more time on the host's.
func cpuLimit(e *env) {
	e.sandboxed()
	if !e.d.Features().CPULimit {
		e.Skip("this host lets the driver set no CPU limit: run as root, or with a delegated cgroup")
	}
	if e.s.CPUTime == nil {
		e.Fatal("Subject.CPUTime is missing")
	}
	for _, cpus := range []int{1, 2} {
		c := e.config()
		c.VCPUs = cpus
		g := e.boot(c)
		if got := g.sh("nproc"); got != strconv.Itoa(cpus) {
			e.Errorf("nproc: got %s, want %d", got, cpus)
		}
		if cpus > 1 {
			continue
		}
		burn := g.Command(e.context(), "sh", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait")
		if err := burn.Start(); err != nil {
			e.Fatal(err)
		}
		used, begin := e.s.CPUTime(e, g.Machine), time.Now()
		g.busy(2 * time.Second)
		used, took := e.s.CPUTime(e, g.Machine)-used, time.Since(begin)
		e.Logf("%v of CPU time in %v", used, took)
		// A quota is given out ahead, a period at a time.
		if limit := took*time.Duration(cpus)*5/4 + 300*time.Millisecond; used > limit {
			e.Errorf("four loops took %v of CPU time in %v, more than %v", used, took, limit)
		}
		if used == 0 {
			e.Error("no CPU time was counted")
		}
		e.destroy(g)
	}
}
