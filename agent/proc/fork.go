package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A launch is what a process is started with.
type launch struct {
	path  string
	env   []string
	cred  *syscall.Credential
	child [3]int // its stdin, stdout and stderr; -1 for none
}

// prepare finds the program and opens the process's files.
func (p *Process) prepare() error {
	p.launch.child = [3]int{-1, -1, -1}
	var account *Account
	if p.spec.User != "" {
		var err error
		if account, err = LookUpUser(p.spec.User); err != nil {
			return err
		}
		p.launch.cred = account.credential()
	}
	p.launch.env = environment(os.Environ(), p.spec.Env, account, p.spec.TTY)
	var err error
	if p.launch.path, err = findProgram(p.spec.Args[0], p.launch.env); err != nil {
		return err
	}
	if err := checkDir(p.spec.Dir); err != nil {
		return err
	}
	if p.spec.TTY {
		return p.openTerminal()
	}
	return p.openPipes()
}

// checkDir gives the errors of a bad working directory their own text; those of
// the child would name the program.
func checkDir(dir string) error {
	if dir == "" {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		if pe, ok := errors.AsType[*fs.PathError](err); ok {
			pe.Op = "chdir"
		}
		return err
	}
	if !info.IsDir() {
		return &fs.PathError{Op: "chdir", Path: dir, Err: syscall.ENOTDIR}
	}
	return nil
}

// findProgram looks a bare name up in the PATH that the process will have.
// Directories that are not absolute are passed over, as os/exec does.
func findProgram(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for dir := range strings.SplitSeq(lookUp(env, "PATH"), ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		path := strings.TrimRight(dir, "/") + "/" + name
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// fork starts the program and closes what only the child needs.
func (p *Process) fork(oom *oomShield) (pid int, err error) {
	l := &p.launch
	attr := &syscall.ProcAttr{
		Dir: p.spec.Dir, Env: l.env,
		Files: []uintptr{uintptr(l.child[0]), uintptr(l.child[1]), uintptr(l.child[2])},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: p.spec.TTY, Credential: l.cred},
	}
	// The child starts with the signal mask of the thread that forks. Ours may
	// have been given a mask that it never looks at.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, old unix.Sigset_t
	if unix.PthreadSigmask(unix.SIG_SETMASK, &none, &old) == nil {
		defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) }()
	}
	oom.lower()
	pid, err = syscall.ForkExec(l.path, p.spec.Args, attr)
	oom.raise()
	if err != nil {
		return 0, &fs.PathError{Op: "fork/exec", Path: l.path, Err: err}
	}
	l.closeChild()
	l.env = nil
	return pid, nil
}

func (l *launch) closeChild() {
	closed := map[int]bool{}
	for i, fd := range l.child {
		if fd >= 0 && !closed[fd] {
			closed[fd] = true
			_ = unix.Close(fd)
		}
		l.child[i] = -1
	}
}

// closeFiles closes everything, of a process that did not start.
func (p *Process) closeFiles() {
	p.launch.closeChild()
	if p.stdin != nil {
		p.stdin.processEnded()
	}
	for _, o := range []*output{p.stdout, p.stderr} {
		if o != nil {
			_ = o.f.Close()
		}
	}
}

// openPipes makes the files of a process without a terminal.
func (p *Process) openPipes() error {
	if p.spec.Stdin {
		child, ours, err := pipe(false)
		if err != nil {
			return err
		}
		p.launch.child[0] = child
		p.stdin = &pipeInput{f: ours}
	} else {
		fd, err := nothing()
		if err != nil {
			return err
		}
		p.launch.child[0] = fd
	}
	for i, o := range []**output{&p.stdout, &p.stderr} {
		child, ours, err := pipe(true)
		if err != nil {
			return err
		}
		p.launch.child[i+1] = child
		*o = newOutput(p, ours)
		if size := p.spec.PipeSize; size > 0 && i == 0 {
			// Where the kernel grants no more the usual size has to do.
			_ = withFD(ours, func(fd int) error {
				_, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size)
				return err
			})
		}
	}
	return nil
}

// pipe returns the child's end of a new pipe and ours, which does not block a
// thread. Ours is the reading end if read.
func pipe(read bool) (child int, ours *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, os.NewSyscallError("pipe2", err)
	}
	own, child := fds[1], fds[0]
	if read {
		own, child = fds[0], fds[1]
	}
	if err := unix.SetNonblock(own, true); err != nil {
		_ = unix.Close(own)
		_ = unix.Close(child)
		return -1, nil, os.NewSyscallError("fcntl", err)
	}
	return child, os.NewFile(uintptr(own), "|"), nil
}

// nothing opens /dev/null, or a pipe that is at its end where a guest has removed
// that.
func nothing() (int, error) {
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err == nil {
		return fd, nil
	}
	child, ours, err := pipe(false)
	if err != nil {
		return -1, err
	}
	_ = ours.Close()
	return child, nil
}
