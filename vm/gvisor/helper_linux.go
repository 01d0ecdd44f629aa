package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/life"
	"github.com/bouvet-run/bouvet/vm"
)

const (
	// consoleSize bounds what the guest may write to its standard output and
	// error, in bytes. The first so many are kept and further writes fail.
	consoleSize = vm.MaxConsole
	// tailSize is how much of runsc's log is kept, in bytes.
	tailSize = 8 << 10
	// helperLog is the helper's descriptor for its log.
	helperLog = channelFD + 1
	// helperGrace bounds the wait for a killed helper.
	helperGrace = 10 * time.Second
)

// ends are the descriptors that connect a machine with its owner.
type ends struct {
	channel net.Conn // carries the mux
	// life is the write end of the guest's standard input. One byte opens the
	// helper's gate; its closing ends a machine that is not detached.
	life    *os.File
	console *os.File // what the guest wrote
	log     *os.File // read end of runsc's log
}

// guestEnds are the other sides, for the helper to inherit.
type guestEnds struct{ channel, stdin, log *os.File }

func (e *ends) close() {
	if e.channel != nil {
		_ = e.channel.Close()
	}
	closeFiles(e.life, e.console, e.log)
}

func (g *guestEnds) close() { closeFiles(g.channel, g.stdin, g.log) }

func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// makeEnds makes both sides. runsc gives the files of its standard streams to the
// sentry's user, so none of them may be /dev/null or anything else of the host's.
func makeEnds(id string) (_ *ends, _ *guestEnds, err error) {
	e, g := &ends{}, &guestEnds{}
	defer func() {
		if err != nil {
			e.close()
			g.close()
		}
	}()
	if g.stdin, e.life, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if e.log, g.log, err = os.Pipe(); err != nil {
		return nil, nil, err
	}
	if e.console, err = makeConsole(id); err != nil {
		return nil, nil, err
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make channel: %w", err)
	}
	host := os.NewFile(uintptr(fds[0]), "channel")
	g.channel = os.NewFile(uintptr(fds[1]), "channel")
	e.channel, err = net.FileConn(host)
	_ = host.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make channel: %w", err)
	}
	return e, g, nil
}

// makeConsole makes a file in memory that cannot grow: the guest can neither fill
// a disk with it nor be held up by it, and it needs no reader, so a detached
// machine keeps it.
func makeConsole(id string) (*os.File, error) {
	fd, err := unix.MemfdCreate("console-"+id, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("cannot make console: %w", err)
	}
	f := os.NewFile(uintptr(fd), "console")
	err = f.Truncate(consoleSize)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("cannot make console: %w", err)
	}
	return f, nil
}

// A helperError is the failure of a helper, with what it said.
type helperError struct {
	err  error
	said string
}

func (e *helperError) Error() string {
	if e.said == "" {
		return "runsc failed: " + e.err.Error()
	}
	return fmt.Sprintf("runsc failed: %v: %s", e.err, e.said)
}

func (e *helperError) Unwrap() error { return e.err }

// runHelper starts the machine whose bundle is in dir by command, runsc's or ours,
// and returns when it runs. If ctx ends first, the helper is gone, but perhaps not
// what it started.
func (d *Driver) runHelper(ctx context.Context, id, dir string, command []string, e *ends, g *guestEnds, log *life.Tail) error {
	args := []string{
		helperName, rootFlag(dir), fmt.Sprintf("--log=/proc/self/fd/%d", helperLog),
		"--platform=systrap", "--network=none", "--directfs=false", "--ignore-cgroups", "--host-settings=ignore",
		"--restore-spec-validation=ignore", // the manifest was compared, and paths may be others
		"--allow-suid",                     // sudo, in the guest
	}
	if d.rootless {
		args = append(args, "--rootless")
	}
	args = append(args, command...)
	args = append(args, "-bundle="+dir+"/"+bundleDir, "-pid-file="+dir+"/"+pidFile, id)

	cmd := exec.CommandContext(ctx, d.exe)
	cmd.Args = args
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = g.stdin, e.console, e.console
	cmd.ExtraFiles = []*os.File{g.channel, g.log}
	cmd.WaitDelay = helperGrace
	// Away from our terminal: a Ctrl-C is for us to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.rootless {
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
	}
	err := cmd.Start()
	g.close()
	if err == nil {
		err = d.keeper.Cgroups.Enter(id, cmd.Process.Pid)
		if err == nil {
			_, err = e.life.Write([]byte{'\n'})
		}
		if err != nil {
			_ = cmd.Process.Kill()
		}
		err = errors.Join(err, cmd.Wait())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil {
		return nil
	}
	if errors.Is(err, syscall.EPERM) && d.rootless {
		return fmt.Errorf("cannot start an unprivileged sandbox: %w: this host forbids user namespaces; run as root, or allow them "+
			"(sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0)", err)
	}
	// The sentry's own words are in the log alone; the helper repeats its there.
	said := messages(log.String())
	if said == "" {
		said = life.OneLine(readHead(e.console, tailSize))
	}
	return &helperError{err: err, said: said}
}

// messages are the texts of the JSON records at the end of runsc's log, on one line.
func messages(log string) string {
	var all []string
	// Limited by the tail; a record cut in front ends it.
	dec := json.NewDecoder(strings.NewReader(log)) //nolint:forbidigo // limited, and no peer's: runsc's
	for {
		var record struct {
			Message string `json:"msg"`
		}
		if err := dec.Decode(&record); err != nil {
			break
		}
		all = append(all, record.Message)
	}
	if len(all) == 0 {
		return life.OneLine(log)
	}
	return life.OneLine(strings.Join(all, "\n"))
}

// readHead reads the first bytes of a file that others may still be writing.
func readHead(f *os.File, limit int) string {
	b := make([]byte, limit)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	// What follows is not written yet; a restored guest goes on behind what it wrote
	// before, to another file.
	return strings.Trim(string(b[:n]), "\x00")
}

// followLog collects runsc's log until its last writer is gone or the reader closes.
func followLog(r *os.File, t *life.Tail) { _, _ = io.Copy(t, r) }
