package firecracker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
)

// outputDelay is how long the end of Firecracker's output may lag behind its own.
const outputDelay = time.Second

// exitSeccomp is Firecracker's status after a system call that its filter forbids.
const exitSeccomp = 148

// A process is the warden of a machine. With it all of the machine's processes end.
type process struct {
	cmd    *exec.Cmd
	orders io.WriteCloser
}

// start starts a warden, which waits for its orders. What it and Firecracker say goes
// to said.
func (d *Driver) start(ctx context.Context, c *vm.Config, dir string, said io.Writer) (*process, error) {
	// ctx bounds the call that makes the machine, and not the machine's life.
	cmd := exec.CommandContext(context.WithoutCancel(ctx), d.exe)
	cmd.Args = []string{wardenName, apiSocket(dir)}
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = said, said
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true, // away from our terminal: a Ctrl-C is for us to handle
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET,
	}
	if !c.Detached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start warden: %w", err)
	}
	if err := life.Start(cmd); err != nil {
		_ = stdin.Close()
		return nil, fmt.Errorf("cannot start warden: %w", err)
	}
	return &process{cmd, stdin}, nil
}

// command gives the warden its orders.
func (p *process) command(o *orders) error {
	data, err := json.Marshal(o)
	if err == nil {
		_, err = p.orders.Write(data)
	}
	if err = errors.Join(err, p.orders.Close()); err != nil {
		return fmt.Errorf("cannot command warden: %w", err)
	}
	return nil
}

func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot kill warden %d: %w", p.cmd.Process.Pid, err)
	}
	return nil
}

// jailer is the command line that makes Firecracker in jail j. The cgroup is the one
// that it is started in: told of version 1 and of no controller, the jailer changes
// nothing there. Its filter of system calls and its transport are the defaults, which
// is no --no-seccomp and no --enable-pci (threat T53).
func (d *Driver) jailer(j *jail) []string {
	user := strconv.FormatUint(uint64(j.user), 10)
	return []string{
		d.jailerPath, "--id", jailID, "--exec-file", d.program, "--uid", user, "--gid", user,
		"--chroot-base-dir", j.base, "--cgroup-version", "1",
		"--", "--api-sock", "/" + j.api,
	}
}
