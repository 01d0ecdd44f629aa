package proc

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The size of a terminal that nobody gave one.
const (
	defaultCols = 80
	defaultRows = 24
)

// openTerminal makes a terminal and lets the process have its other end. That end
// is not kept open here: the kernel would then drop what the terminal still holds
// when the process ends, and its output would be lost.
func (p *Process) openTerminal() error {
	master, fd, err := openPTY()
	if err != nil {
		return fmt.Errorf("cannot open terminal: %w", err)
	}
	p.launch.child = [3]int{fd, fd, fd}
	p.tty = master
	p.stdin = &ttyInput{f: master}
	p.stdout = newOutput(p, master)
	cols, rows := p.spec.Cols, p.spec.Rows
	if cols == 0 {
		cols = defaultCols
	}
	if rows == 0 {
		rows = defaultRows
	}
	if err := resize(master, cols, rows); err != nil {
		return fmt.Errorf("cannot set terminal size: %w", err)
	}
	if cred := p.launch.cred; cred != nil {
		// Programs open the terminal by its name, too.
		if err := unix.Fchown(fd, int(cred.Uid), -1); err != nil {
			return fmt.Errorf("cannot give terminal to user: %w", err)
		}
	}
	return nil
}

// openPTY returns a new terminal's master, which does not block a thread, and the
// descriptor of its other end.
func openPTY() (master *os.File, other int, err error) {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		fd, err = unix.Open("/dev/pts/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return nil, -1, &os.PathError{Op: "open", Path: "/dev/ptmx", Err: err}
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, -1, os.NewSyscallError("TIOCSPTLCK", err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, -1, os.NewSyscallError("TIOCGPTN", err)
	}
	path := "/dev/pts/" + strconv.Itoa(number)
	other, err = unix.Open(path, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), "/dev/ptmx"), other, nil
}

// withFD runs f on the descriptor of file.
func withFD(file *os.File, f func(fd int) error) error {
	rc, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	if err := rc.Control(func(fd uintptr) { ferr = f(int(fd)) }); err != nil {
		return err
	}
	return ferr
}

func resize(master *os.File, cols, rows uint16) error {
	return withFD(master, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	})
}

// termios returns the settings of the terminal, as its programs made them.
func termios(master *os.File) (t *unix.Termios, err error) {
	err = withFD(master, func(fd int) error {
		t, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	return t, err
}

// eofCharacter returns the character that ends the input, if there is one now.
func eofCharacter(master *os.File) (byte, bool) {
	t, err := termios(master)
	if err != nil || t.Lflag&unix.ICANON == 0 || t.Cc[unix.VEOF] == 0 {
		return 0, false
	}
	return t.Cc[unix.VEOF], true
}

// signalJob sends a signal to the foreground job of the terminal. It reports
// false if the process's own group is to have it, too.
func (p *Process) signalJob(sig unix.Signal) (done bool, err error) {
	select {
	case <-p.m.Thawed():
	default:
		return true, ErrFrozen
	}
	keyboard := sig == unix.SIGINT || sig == unix.SIGQUIT || sig == unix.SIGTSTP
	group := 0
	err = withFD(p.tty, func(fd int) error {
		group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP)
		return err
	})
	if err != nil || group <= 0 {
		// gVisor tells only the terminal's own processes which job it is.
		return keyboard && p.typeSignal(sig) == nil, nil
	}
	if group == p.pid {
		return false, nil
	}
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if p.reaped {
		return true, ErrEnded
	}
	if p.m.frozen != nil {
		return true, ErrFrozen
	}
	err = unix.Kill(-group, sig)
	return keyboard && err == nil, nil
}

// typeSignal makes the terminal itself send a keyboard's signal.
func (p *Process) typeSignal(sig unix.Signal) error {
	t, err := termios(p.tty)
	if err != nil {
		return err
	}
	char := t.Cc[map[unix.Signal]int{unix.SIGINT: unix.VINTR, unix.SIGQUIT: unix.VQUIT, unix.SIGTSTP: unix.VSUSP}[sig]]
	if t.Lflag&unix.ISIG == 0 || char == 0 {
		return unix.ENOTTY
	}
	return withFD(p.tty, func(fd int) error {
		_, err := unix.Write(fd, []byte{char})
		return err
	})
}
