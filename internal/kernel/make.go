package kernel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/bouvet-run/bouvet/internal/wait"
)

const (
	// logMax bounds a build's log, complaintMax what is told of it, lineMax a line
	// of that; all in bytes.
	logMax, complaintMax, lineMax = 8 << 20, 1500, 400
	// groupGrace is how long killed processes may take to be gone.
	groupGrace = 5 * time.Second
)

// buildTools are the programs that a build runs, and the packages they are in.
var buildTools = []struct{ name, pkg string }{
	{"apt-get", "apt"},
	{"dpkg-deb", "dpkg"},
	{"make", "make"},
	{"gcc", "gcc"},
	{"ld", "binutils"},
	{"strip", "binutils"},
	{"flex", "flex"},
	{"bison", "bison"},
	{"bc", "bc"},
	{"perl", "perl"},
	{"tar", "tar"},
	{"xz", "xz-utils"},
	{"gzip", "gzip"},
}

// A MissingError names what is not installed of what a build needs.
type MissingError struct {
	// Packages are Debian's, sorted.
	Packages []string
}

// Error implements error.
func (e *MissingError) Error() string {
	return "cannot build kernel: missing: " + strings.Join(e.Packages, " ")
}

// Remedy is the command that installs what is missing.
func (e *MissingError) Remedy() string { return "apt-get install " + strings.Join(e.Packages, " ") }

// checkTools makes sure that all that a build needs is there before it begins.
func checkTools(ctx context.Context) error {
	var missing []string
	add := func(pkg string) {
		if !slices.Contains(missing, pkg) {
			missing = append(missing, pkg)
		}
	}
	for _, t := range buildTools {
		if _, err := exec.LookPath(t.name); err != nil {
			add(t.pkg)
		}
	}
	if _, err := exec.LookPath("gcc"); err == nil {
		for _, h := range []struct{ name, pkg string }{{"stdlib.h", "libc6-dev"}, {"gelf.h", "libelf-dev"}} {
			cmd, _ := command(ctx, "/", "gcc", "-x", "c", "-fsyntax-only", "-")
			cmd.Stdin = strings.NewReader("#include <" + h.name + ">\n")
			if cmd.Run() != nil && ctx.Err() == nil {
				add(h.pkg)
			}
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cannot build kernel: %w", context.Cause(ctx))
	}
	if len(missing) > 0 {
		return &MissingError{Packages: missing}
	}
	return nil
}

// runGroup runs cmd, made with ctx, which ends all that it has started as well.
func runGroup(ctx context.Context, cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	killed := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel = killed
	cmd.WaitDelay = toolGrace
	if err := cmd.Start(); err != nil {
		return err
	}
	err := cmd.Wait()
	// No file is made any more once the last of them is gone.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), groupGrace)
	defer cancel()
	gone := wait.Until(ctx, func() (bool, error) { return errors.Is(killed(), syscall.ESRCH), nil })
	if err == nil && gone != nil {
		return errors.New("processes that it has started do not end")
	}
	return err
}

// A makeLog keeps what make says, bounded, and counts its lines.
type makeLog struct {
	path string
	// each is told the number of lines so far, after each; nil means nobody is.
	each func(n int64)

	mu    sync.Mutex
	file  *os.File
	size  int
	lines int64
	line  []byte   // the beginning of one that has not ended
	bad   []string // the first that complain
	last  []string // the last ones
}

func newMakeLog(path string) (*makeLog, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot make the build's log: %w", err)
	}
	return &makeLog{path: path, file: f}, nil
}

// complains matches compilers' errors, and make's.
var complains = regexp.MustCompile(`(?i)\berror\b|\*\*\*|not found`)

// Write implements io.Writer.
func (l *makeLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if room := logMax - l.size; room > 0 {
		n, err := l.file.Write(p[:min(len(p), room)])
		l.size += n
		if err != nil {
			return n, err
		}
	}
	for rest := p; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		l.line = append(l.line, part[:min(len(part), lineMax-min(lineMax, len(l.line)))]...)
		if ended {
			l.end()
		}
		rest = after
	}
	return len(p), nil
}

// end takes up a line. The caller holds mu.
func (l *makeLog) end() {
	l.lines++
	line := strings.ToValidUTF8(string(bytes.TrimSpace(l.line)), "?")
	l.line = l.line[:0]
	if complains.MatchString(line) && len(l.bad) < 4 {
		l.bad = append(l.bad, line)
	}
	l.last = append(l.last, line)
	if len(l.last) > 8 {
		l.last = append(l.last[:0], l.last[4:]...)
	}
	if l.each != nil {
		l.each(l.lines)
	}
}

// complaint is what make and the compilers complained about.
func (l *makeLog) complaint() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.bad
	if len(all) == 0 {
		all = l.last
	}
	text := strings.Join(all, "; ")
	return text[:min(len(text), complaintMax)]
}

// Close closes the log's file.
func (l *makeLog) Close() error { return l.file.Close() }
