package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// debianLayer is a layer that mmdebstrap writes as it is read.
// temp is a directory for what it builds, used by root alone: as another user
// mmdebstrap needs one that its user namespace can reach, and makes it itself.
func debianLayer(r recipe, temp string, progress Progress) Layer {
	return func(ctx context.Context) (io.ReadCloser, error) {
		ctx, cancel := context.WithCancel(ctx)
		args := append([]string{"mmdebstrap"}, debianArgs(r, os.Geteuid())...)
		end := syscall.SIGTERM
		if os.Geteuid() == 0 {
			// mmdebstrap mounts file systems below temp and leaves them there if it
			// is killed. In namespaces of its own they end with it, as do its
			// children, and it need not clean up.
			end = syscall.SIGKILL
			args = append([]string{"unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"}, args...)
		}
		cmd := command(ctx, end, args[0], args[1:]...)
		// SOURCE_DATE_EPOCH makes mmdebstrap bound modification times, and the
		// programs it runs record that date instead of today's.
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.Epoch, 10))
		p := &program{name: "mmdebstrap", cmd: cmd, cancel: cancel, cause: func() error { return context.Cause(ctx) }}
		if os.Geteuid() == 0 {
			cmd.Env = append(cmd.Env, "TMPDIR="+temp)
		} else {
			// A child removes what was built, in its user namespace; we could not.
			p.grace = waitDelay
		}
		p.stderr.line = func(line string) {
			if stage, ok := debianStage(line); ok {
				progress.stage(stage)
			}
		}
		cmd.Stderr = &p.stderr
		var err error
		if p.stdout, err = cmd.StdoutPipe(); err == nil {
			err = cmd.Start()
		}
		if err != nil {
			cancel()
			return nil, fmt.Errorf("cannot run mmdebstrap: %w", err)
		}
		return p, nil
	}
}

func debianArgs(r recipe, euid int) []string {
	mode := "unshare"
	if euid == 0 {
		mode = "root"
	}
	args := []string{
		"--variant=minbase", "--mode=" + mode, "--format=tar",
		"--include=" + strings.Join(r.Packages, ","),
		`--aptopt=Acquire::Languages "none"`,
		`--aptopt=APT::Install-Recommends "false"`,
		`--aptopt=Acquire::Retries "3"`,
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/info/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-include=/usr/share/doc/*/copyright",
		"--customize-hook=" + r.Script,
		r.Suite, "-",
	}
	if r.Mirror != "" {
		args = append(args, r.Mirror)
	}
	return args
}

// debianStage returns what a line of mmdebstrap's says it is doing.
func debianStage(line string) (string, bool) {
	text, ok := strings.CutPrefix(line, "I: ")
	if !ok {
		return "", false
	}
	for _, s := range []struct{ prefix, stage string }{
		{"running apt-get update", "reading package lists"},
		{"downloading packages", "downloading packages"},
		{"extracting archives", "extracting packages"},
		{"installing essential packages", "installing essential packages"},
		{"installing remaining packages", "installing packages"},
		{"running --customize-hook", "setting up the system"},
		{"cleaning package lists", "cleaning up"},
		{"creating tarball", "writing files"},
	} {
		if strings.HasPrefix(text, s.prefix) {
			return s.stage, true
		}
	}
	return "", false
}

// A program is the output of a running program as a stream. At its end the
// program's failure, if any, takes the place of io.EOF.
type program struct {
	name   string
	cmd    *exec.Cmd
	cancel context.CancelFunc
	cause  func() error // why the program was ended, if it was
	stdout io.ReadCloser
	stderr tail
	grace  time.Duration // for its children to end after it
	once   sync.Once
	err    error
}

func (p *program) Read(b []byte) (int, error) {
	n, err := p.stdout.Read(b)
	if err != nil {
		if werr := p.wait(); werr != nil {
			return n, werr
		}
	}
	return n, err
}

// wait waits for the program to end.
func (p *program) wait() error {
	p.once.Do(func() {
		if err := p.cmd.Wait(); err != nil {
			if p.err = p.cause(); p.err == nil {
				p.err = p.stderr.explain(p.name, err)
			}
		}
		reap(p.cmd, p.grace)
	})
	return p.err
}

// Close ends the program if it has not ended.
func (p *program) Close() error {
	p.cancel()
	_ = p.wait() // Read has reported it, unless it is we who ended the program
	return nil
}
