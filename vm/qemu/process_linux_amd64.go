package qemu

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vm"
)

const (
	// Each machine of root's has a user of its own, of these; see credential.
	uidBase, uidCount = 0x70000000, 0x0fff0000
	nobody            = 65534
	// outputDelay is how long the end of QEMU's output may lag behind that of QEMU.
	outputDelay = time.Second
)

// hostEnds connect the owner with a machine.
type hostEnds struct {
	channel, qmp, console net.Conn
	// gate keeps QEMU from doing anything while it is open.
	gate *os.File
}

// guestEnds are the other sides, for QEMU to inherit.
type guestEnds struct{ channel, qmp, console, gate *os.File }

func (h *hostEnds) close() {
	for _, c := range []net.Conn{h.channel, h.qmp, h.console} {
		if c != nil {
			_ = c.Close()
		}
	}
	closeFiles(h.gate)
}

func (g *guestEnds) close() { closeFiles(g.channel, g.qmp, g.console, g.gate) }

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

func makeEnds() (_ *hostEnds, _ *guestEnds, err error) {
	h, g := &hostEnds{}, &guestEnds{}
	defer func() {
		if err != nil {
			h.close()
			g.close()
		}
	}()
	for _, pair := range []struct {
		host  *net.Conn
		guest **os.File
		name  string
	}{{&h.channel, &g.channel, "channel"}, {&h.qmp, &g.qmp, "qmp"}, {&h.console, &g.console, "console"}} {
		if *pair.host, *pair.guest, err = socketPair(pair.name); err != nil {
			return nil, nil, fmt.Errorf("cannot make %s: %w", pair.name, err)
		}
	}
	if g.gate, h.gate, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	return h, g, nil
}

func socketPair(name string) (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	host, guest := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	conn, err := net.FileConn(host)
	_ = host.Close()
	if err != nil {
		_ = guest.Close()
		return nil, nil, err
	}
	return conn, guest, nil
}

// A process is a QEMU of ours.
type process struct{ cmd *exec.Cmd }

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill QEMU %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

// start starts QEMU, which waits at its gate. Its messages go to said.
func (d *Driver) start(ctx context.Context, c *vm.Config, f *files, g *guestEnds, dir string, said io.Writer) (*process, error) {
	// ctx bounds the call that makes the machine, and not the machine's life.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), d.program, arguments(c, dir)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{g.channel, g.qmp, g.console, f.kernel, f.initramfs, f.image, g.gate}
	cmd.WaitDelay = outputDelay
	// Away from our terminal: a Ctrl-C is for us to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !c.Detached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = credential(c.ID)
		// It opens this one by its name, as its user.
		if err := g.gate.Chown(int(cmd.SysProcAttr.Credential.Uid), -1); err != nil {
			return nil, fmt.Errorf("cannot hand over gate: %w", err)
		}
	}
	started := make(chan error, 1)
	parent() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start QEMU: %w", err)
	}
	return &process{cmd}, nil
}

// parent takes what is to run on the thread that is the parent of machines. The
// kernel takes the end of that thread, not of the process, for the death of their
// owner; so it lives as long as the process.
var parent = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// credential is the user that the QEMU of machine id runs as, nobody's on a usual
// host; where this user namespace is too small for that, it is the user nobody.
func credential(id string) *syscall.Credential {
	h := fnv.New32a()
	_, _ = io.WriteString(h, id)
	uid := uidBase + h.Sum32()%uidCount
	if !mapped("/proc/self/uid_map", uid) || !mapped("/proc/self/gid_map", uid) {
		uid = nobody
	}
	return &syscall.Credential{Uid: uid, Gid: uid}
}

// mapped reports whether a map of user_namespaces(7) has id.
func mapped(path string, id uint32) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(fields[0], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 33)
		if err1 == nil && err2 == nil && uint64(id) >= first && uint64(id) < first+count {
			return true
		}
	}
	return false
}
