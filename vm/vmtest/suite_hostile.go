package vmtest

import (
	"context"
	"errors"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

var hostileSections = []section{
	{"T01 fork bomb", forkBomb},
	{"T28 agent under fire", agentUnderFire},
	{"T08 guest ends itself", guestEnds},
}

// destroyLimit is how long the end of a machine in the worst state may take.
const destroyLimit = 2 * time.Second

// quickly destroys m and fails if that takes too long.
func (e *env) quickly(m vm.Machine, what string) {
	e.Helper()
	begin := time.Now()
	e.destroy(m)
	took := time.Since(begin)
	e.Logf("%s: destroyed in %v", what, took)
	if took > destroyLimit {
		e.Errorf("%s: Destroy took %v, more than %v", what, took, destroyLimit)
	}
}

// A machine full of processes that multiply ends as fast as another, and its
// neighbour answers all the while.
func forkBomb(e *env) {
	e.memoryLimited()
	g, neighbour := e.boot(e.config()), e.boot(e.config())
	bombing, cancel := context.WithCancel(e.context())
	defer cancel()
	g.apart()
	bomb := g.Command(bombing, "bash", "-c", "bomb() { bomb | bomb & }; bomb; sleep 4711")
	if err := bomb.Start(); err != nil {
		e.Fatal(err)
	}
	neighbour.busy(2 * time.Second)
	begin := time.Now()
	err := g.Ping(e.context())
	e.Logf("its agent answered %v after %v", err, time.Since(begin))
	e.quickly(g, "fork bomb")
	neighbour.ping()
	if err := bomb.Wait(); err == nil {
		e.Error("the bomb ended well")
	}
}

// Root of the guest turns on the agent. Calls then end, by an answer, by the
// machine's end or in their time, and the machine can be destroyed.
func agentUnderFire(e *env) {
	e.sandboxed()
	for _, script := range []string{
		"kill -STOP 1",
		"kill -STOP -1",
		"kill -9 -1",
		"kill -9 1",
		"kill -SEGV 1",
		"kill -QUIT 1",
		"kill -TERM 1",
		"for p in /proc/[0-9]*; do echo 1000 > $p/oom_score_adj; done; mount -t tmpfs none /proc",
		"rm -rf --no-preserve-root /",
		"mv /bin /b; mv /usr /u; mount -t tmpfs none /dev; mount -t tmpfs none /.bouvet",
		"python3 -c 'import os\nwhile True:\n f = os.open(\"/etc/passwd\", 0)'; prlimit --pid 1 --nofile=1",
	} {
		m := e.create(e.config())
		g := e.connect(m)
		g.apart()
		e.living(m)
		client, err := bouvet.Connect(e.context(), m, &bouvet.ClientOptions{ConnectTimeout: bound, RPCTimeout: time.Second})
		if err != nil {
			e.Fatal(err)
		}
		attack, cancel := context.WithTimeout(e.context(), 3*time.Second)
		begin := time.Now()
		_, _ = g.Command(attack, "sh", "-c", script+" 2>/dev/null").CombinedOutput()
		err = client.Ping(e.context())
		cancel()
		e.Logf("%.40q: ping: %v", script, err)
		if took := time.Since(begin); took > 3*time.Second+time.Second+prompt {
			e.Errorf("%s: calls ended after %v", script, took)
		}
		if err != nil && !errors.Is(err, vm.ErrGone) && !errors.Is(err, bouvet.ErrRPC) && !errors.Is(err, bouvet.ErrIO) && !errors.Is(err, bouvet.ErrConnection) {
			e.Errorf("%s: ping: got %v, want none, a timeout or a broken connection", script, err)
		}
		if err := client.Close(); err != nil {
			e.Error(err)
		}
		e.quickly(m, script)
		e.nothingLeft()
	}
}

// A guest that switches itself off, or whose agent ends, is gone, and says so.
func guestEnds(e *env) {
	e.sandboxed()
	g := e.boot(e.config())
	_, _ = g.hostile("kill -SEGV 1; reboot -f; poweroff -f")
	if err := g.Ping(e.context()); err == nil {
		g.ping()
		e.Log("the guest cannot end its agent")
		return
	}
	e.ended(g, bound)
	e.wantGone("Err", g.Err())
	e.destroy(g)
	e.nothingLeft()
}
