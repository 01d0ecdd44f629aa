package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// outputDelay is how long the end of QEMU's output may lag behind that of QEMU.
	outputDelay = time.Second
)

// hostEnds connect the owner with a machine.
type hostEnds struct {
	channel, lane, qmp, console net.Conn // unix sockets
	// gate keeps QEMU from doing anything while it is open.
	gate *os.File
}

// guestEnds are the other sides, for QEMU to inherit.
type guestEnds struct{ channel, lane, qmp, console, gate *os.File }

func (h *hostEnds) close() {
	for _, c := range []net.Conn{h.channel, h.lane, h.qmp, h.console} {
		if c != nil {
			_ = c.Close()
		}
	}
	closeFiles(h.gate)
}

func (g *guestEnds) close() { closeFiles(g.channel, g.lane, g.qmp, g.console, g.gate) }

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
	}{{&h.channel, &g.channel, "channel"}, {&h.lane, &g.lane, "lane"}, {&h.qmp, &g.qmp, "qmp"}, {&h.console, &g.console, "console"}} {
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
func (d *Driver) start(ctx context.Context, c *vm.Config, accel string, f *files, g *guestEnds, dir string, said io.Writer) (*process, error) {
	// ctx bounds the call that makes the machine, and not the machine's life.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), d.program, arguments(c, &d.kernel.Manifest, dir, accel, f.state != nil)...)
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.ExtraFiles = []*os.File{g.channel, g.qmp, g.console, f.kernel, f.initramfs, f.image, g.gate, f.ram, f.disk, f.state, g.lane}
	cmd.WaitDelay = outputDelay
	// Away from our terminal: a Ctrl-C is for us to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if !c.Detached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	user, err := accelCredential(c.ID, accel == AccelKVM)
	if err != nil {
		return nil, err
	}
	if user != nil {
		cmd.SysProcAttr.Credential = user
		// It opens this one by its name, as its user.
		if err := g.gate.Chown(int(user.Uid), -1); err != nil {
			return nil, fmt.Errorf("cannot hand over gate: %w", err)
		}
	}
	if err := life.Start(cmd); err != nil {
		return nil, fmt.Errorf("cannot start QEMU: %w", err)
	}
	return &process{cmd}, nil
}

// environment is QEMU's.
func environment() []string { return []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"} }
