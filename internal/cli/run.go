package cli

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/vm"
)

const runLong = `Runs a command in a fresh sandbox and ends with its exit code. Nothing of the
sandbox is left afterwards.

Without a command it runs what the image is made for, or a shell. With --lang it
runs code: a file, standard input ("-"), or the text given with --code. Words
that follow are the code's own arguments.

Standard input reaches the command when it is not a terminal, or with -i. The
command gets a terminal of its own when both standard input and standard output
are one; three times Ctrl-] within a second ends a command that does not let go.
Ctrl-C ends the command; a second one ends it by force.

The command runs as "user" (uid 1000) in /home/user where the image has that
account and asks for no other; -u root works. It sees the environment of the
sandbox and what -e and --env-file add, nothing of the host's.

With --snapshot the sandbox is saved under a name when the command has ended with
0, and --from-snapshot runs in a copy of it, any number of times: files, memory and
detached processes are as they were, entropy, clock, host name and machine-id are
the copy's own. A copy is as large as its original, and runs with the same driver.

A missing default image is built first, which takes minutes, once.

The exit code is the command's. 124 says that the timeout ended it, 125 that Bouvet
failed (a wrong flag is one reason), 126 that it cannot be executed, 127 that it was
not found, 128+n that signal n ended it.`

const runExample = `  bouvet run -- uname -a
  bouvet run --lang python --code 'print(sum(range(10)))'
  bouvet run --lang node script.js one two
  echo 'echo $RANDOM' | bouvet run --lang bash -
  bouvet run --memory 512M --timeout 10s --file data.csv:/tmp/ -- wc -l /tmp/data.csv
  bouvet run --snapshot warm -- sh -c 'echo cached > ~/data'
  bouvet run --from-snapshot warm -- sh -c 'cat ~/data'
  bouvet run --json --lang python --code 'import sys; sys.exit(3)'
  bouvet run`

// defaultOutput is how much of each output stream --json keeps.
const defaultOutput = 16 << 20

// runCommand is bouvet run with its flags.
type runCommand struct {
	*world

	lang, code  string
	memory      byteSize
	cpus        int
	disk        byteSize
	snapshot    string // to be made
	from        string // to be run on
	timeout     timeLimit
	env         []string
	envFiles    []string
	dir, user   string
	image       string
	files       []string
	json        bool
	maxOutput   byteSize
	hostname    string
	driver      string
	quiet       bool
	interactive bool
	tty         bool
	noBuild     bool

	ttyGiven bool
	shaped   []string // flags given that a snapshot decides
}

func newRunCommand(w *world) *cobra.Command {
	c := &runCommand{
		world:     w,
		memory:    bouvet.DefaultMemoryMiB << 20,
		maxOutput: defaultOutput,
	}
	cmd := &cobra.Command{
		Use:     "run [flags] [--] [COMMAND [ARG...]]",
		Short:   "run a command or code in a fresh sandbox",
		Long:    runLong,
		Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.ttyGiven = cmd.Flags().Changed("tty")
			codeGiven := cmd.Flags().Changed("code")
			for _, name := range []string{"memory", "cpus", "disk", "image"} {
				if cmd.Flags().Changed(name) {
					c.shaped = append(c.shaped, "--"+name)
				}
			}
			return c.run(cmd.Context(), args, codeGiven)
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.SortFlags = false
	f.StringVar(&c.lang, "lang", "", "run code in this `LANGUAGE`: "+strings.Join(languageNames(), ", "))
	f.StringVar(&c.code, "code", "", "the `CODE` itself (needs --lang)")
	f.VarP(&c.memory, "memory", "m", "memory of the sandbox, its writable layer included")
	f.IntVar(&c.cpus, "cpus", bouvet.DefaultVCPUs, "`NUMBER` of virtual CPUs")
	f.Var(&c.disk, "disk", "keep the sandbox's files on a disk of this size, not in memory (--driver qemu, firecracker)")
	f.Var(&c.timeout, "timeout", "end the command after this time, like 30s or 5m (exit code 124)")
	f.StringArrayVarP(&c.env, "env", "e", nil, "set `NAME=VALUE`; NAME alone takes the value it has here")
	f.StringArrayVar(&c.envFiles, "env-file", nil, "set the variables in `FILE`, one NAME=VALUE a line")
	f.StringVarP(&c.dir, "workdir", "w", "", "run the command in `DIR`")
	f.StringVarP(&c.user, "user", "u", "", "run the command as `USER`: a name, a number, or uid:gid")
	f.StringArrayVar(&c.files, "file", nil, "copy a file or directory into the sandbox first: `HOST:GUEST`")
	f.StringVar(&c.image, "image", "", "the `IMAGE` to run in (default \""+bouvet.DefaultImage+"\")")
	f.BoolVar(&c.noBuild, "no-build", false, "fail when the default image is missing")
	f.StringVar(&c.hostname, "hostname", "sandbox", "the sandbox's host `NAME`")
	addDriverFlag(cmd, w, &c.driver)
	f.StringVar(&c.snapshot, "snapshot", "", "save the sandbox under this `NAME` when the command has ended with 0")
	f.StringVar(&c.from, "from-snapshot", "", "run in a copy of the sandbox that was saved under this `NAME`")
	f.BoolVarP(&c.interactive, "interactive", "i", false, "pass standard input on even if it is a terminal and standard output is not")
	f.BoolVarP(&c.tty, "tty", "t", false, "give the command a terminal (default: when there is one)")
	f.BoolVar(&c.json, "json", false, "print one JSON object instead of the command's output")
	f.Var(&c.maxOutput, "max-output", "how much of each output stream --json keeps")
	f.BoolVarP(&c.quiet, "quiet", "q", false, "no progress and no warnings")
	completeFlag(cmd, "image", w.completeImages)
	completeFlag(cmd, "from-snapshot", w.completeSnapshots)
	completeFlag(cmd, "lang", fixed(languageNames()))
	return cmd
}

func (c *runCommand) run(ctx context.Context, args []string, codeGiven bool) error {
	job, err := c.job(args, codeGiven)
	if err != nil {
		return err
	}
	if err := c.check(job); err != nil {
		return err
	}
	s := &runSession{runCommand: c, job: job, began: time.Now()}
	return s.run(ctx)
}

// check reports wrong flags before anything is made.
func (c *runCommand) check(job *job) error {
	const help = "bouvet run --help"
	switch {
	case c.memory < vm.MinMemoryMiB<<20 || c.memory > vm.MaxMemoryMiB<<20:
		return usage(help, "cannot use --memory %s: the sandbox can have %dM to %dG", c.memory.String(), vm.MinMemoryMiB, vm.MaxMemoryMiB>>10)
	case c.cpus < 1 || c.cpus > vm.MaxVCPUs:
		return usage(help, "cannot use --cpus %d: the sandbox can have 1 to %d", c.cpus, vm.MaxVCPUs)
	case c.disk != 0 && (c.disk < vm.MinDiskMiB<<20 || c.disk > vm.MaxDiskMiB<<20):
		return usage(help, "cannot use --disk %s: it can have %dM to %dG", c.disk.String(), vm.MinDiskMiB, vm.MaxDiskMiB>>10)
	case c.from != "" && len(c.shaped) > 0:
		return usage("bouvet run --from-snapshot NAME without it", "cannot use %s with --from-snapshot: the copy is as large as its original, on the same image", c.shaped[0])
	case c.timeout.d < 0:
		return usage(help, "cannot use --timeout %s: it is negative", c.timeout.d)
	case c.maxOutput < 0:
		return usage(help, "cannot use --max-output %s: it is negative", c.maxOutput.String())
	case c.json && c.tty:
		return usage("bouvet run without one of the two", "cannot use --json with --tty: the output of a terminal is not one object")
	case c.tty && openTerminal(c.stdin, c.stdout) == nil:
		return usage("bouvet run without --tty", "cannot use --tty: standard input and standard output are not both a terminal")
	}
	for flag, name := range map[string]string{"--snapshot": c.snapshot, "--from-snapshot": c.from} {
		if name == "" {
			continue
		}
		if err := snapstore.ValidName(name); err != nil {
			return usage(remedySnapshots, "cannot use %s: %w", flag, err)
		}
	}
	if err := checkDriverName(c.driver); err != nil {
		return err
	}
	if c.image != "" {
		if err := image.ValidName(c.image); err != nil && !strings.HasPrefix(c.image, "sha256:") {
			return usage(remedyImages, "cannot use --image: %w", err)
		}
	}
	var err error
	if job.env, err = environment(c.envFiles, c.env, c.lookupEnv); err != nil {
		return &problem{kind: kindUsage, err: err, remedy: help}
	}
	if job.copies, err = parseCopies(c.files); err != nil {
		return err
	}
	if err := c.config().Validate(); err != nil {
		return &problem{kind: kindUsage, err: fmt.Errorf("cannot use these flags: %w", err), remedy: help}
	}
	return nil
}

// config is the sandbox the flags ask for.
func (c *runCommand) config() bouvet.Config {
	if c.from != "" {
		return bouvet.Config{Hostname: c.hostname} // the snapshot says the rest
	}
	return bouvet.Config{
		MemoryMiB: int((c.memory + 1<<20 - 1) >> 20),
		VCPUs:     c.cpus,
		DiskMiB:   int((c.disk + 1<<20 - 1) >> 20),
		Image:     c.image,
		Hostname:  c.hostname,
	}
}

// wantsTerminal reports whether the command gets a terminal of its own.
func (c *runCommand) wantsTerminal() *terminal {
	if c.json || c.ttyGiven && !c.tty {
		return nil
	}
	return openTerminal(c.stdin, c.stdout)
}

// wantsStdin reports whether the command reads our standard input.
func (c *runCommand) wantsStdin() bool {
	return c.interactive || !isTerminal(c.stdin)
}
