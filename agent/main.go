package agent

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/wire"
)

// Program is the agent as a command. The zero value is this process's own.
type Program struct {
	// Args are os.Args: the program's name first.
	Args []string
	// Getenv is os.Getenv.
	Getenv func(string) string
	// Stdin and Stdout carry the one connection of -stdio.
	Stdin, Stdout *os.File
	// Stderr receives the log.
	Stderr io.Writer
	// Version is told by -version and by the method info.
	Version string
}

// Main runs the agent until it is told to end and returns the exit status: 0, 1
// for a failure, 2 for wrong usage. It belongs to the process as a whole: it
// handles signals, sets the umask and, as process 1, waits for every child.
func Main(p Program) int {
	p.setDefaults()
	o, err := p.parse()
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		_, _ = fmt.Fprintf(p.Stderr, "%s: %v\n", Name, err)
		return 2
	case o.showVersion:
		_, _ = fmt.Fprintf(p.Stdout, "%s %s\n", Name, p.Version)
		return 0
	}
	log := slog.New(slog.NewTextHandler(p.Stderr, &slog.HandlerOptions{Level: o.level}))
	if err := p.run(o, log); err != nil {
		log.Error("agent ended", slog.Any("error", err))
		return 1
	}
	return 0
}

func (p *Program) setDefaults() {
	if p.Args == nil {
		p.Args = os.Args
	}
	if p.Getenv == nil {
		p.Getenv = os.Getenv
	}
	if p.Stdin == nil {
		p.Stdin = os.Stdin
	}
	if p.Stdout == nil {
		p.Stdout = os.Stdout
	}
	if p.Stderr == nil {
		p.Stderr = os.Stderr
	}
	if p.Version == "" {
		p.Version = "devel"
	}
}

// options are what the command line and the environment say.
type options struct {
	listen      string // "unix:PATH"
	stdio       uint64 // port, 0 for none
	mux         string // "fd:N", "virtio:NAME" or a path
	lane        string // like mux
	hostBound   bool
	subreaper   bool
	poweroff    bool
	restart     bool
	showVersion bool
	level       slog.Level
	execPort    uint32
}

func (p *Program) parse() (*options, error) {
	o := &options{execPort: wire.PortExec}
	name, args := Name, p.Args
	if len(args) > 0 {
		args = args[1:]
	}
	var level string
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.listen, "listen", "", "serve both ports on a unix socket, unix:`PATH`")
	fs.Uint64Var(&o.stdio, "stdio", 0, "serve one connection to `PORT` on standard input and output")
	fs.StringVar(&o.mux, "mux", "", "serve the streams of a mux on fd:N, virtio:NAME (a port), a device or a unix `SOCKET`")
	fs.StringVar(&o.lane, "lane", "", "with -mux: serve one stream at a time on this, too, for what is much")
	fs.BoolVar(&o.hostBound, "host-bound", false, "end when the mux channel ends")
	fs.BoolVar(&o.subreaper, "subreaper", false, "adopt and reap orphans, as process 1 does")
	fs.BoolVar(&o.poweroff, "poweroff", false, "as process 1, switch the machine off at the end")
	fs.BoolVar(&o.restart, "restart", false, "as process 1, restart the machine at the end, where that ends it")
	fs.BoolVar(&o.showVersion, "version", false, "print the version")
	fs.StringVar(&level, "log-level", "", "debug, info, warn or error; default: $BOUVET_AGENT_LOG, $RUST_LOG, then debug, info with -mux")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			_, _ = fmt.Fprintf(p.Stdout, "usage: %s [flags]\nWithout -listen, -stdio and -mux it listens on AF_VSOCK ports 52 and 10700 ($CLEANROOM_VSOCK_PORT).\n", name)
			fs.SetOutput(p.Stdout)
			fs.PrintDefaults()
		}
		return nil, err
	}
	ways := 0
	for _, chosen := range []bool{o.listen != "", o.stdio != 0, o.mux != ""} {
		if chosen {
			ways++
		}
	}
	switch {
	case fs.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case ways > 1:
		return nil, errors.New("only one of -listen, -stdio and -mux can be given")
	case o.hostBound && o.mux == "":
		return nil, errors.New("-host-bound needs -mux")
	case o.lane != "" && o.mux == "":
		return nil, errors.New("-lane needs -mux")
	case o.poweroff && o.restart:
		return nil, errors.New("only one of -poweroff and -restart can be given")
	case o.stdio > 1<<32-1:
		return nil, fmt.Errorf("-stdio %d is not a port", o.stdio)
	}
	if port := p.Getenv("CLEANROOM_VSOCK_PORT"); port != "" {
		n, err := strconv.ParseUint(port, 10, 32)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("$CLEANROOM_VSOCK_PORT is %q, want a port number", port)
		}
		o.execPort = uint32(n)
	}
	var err error
	o.level, err = p.level(level, o.mux != "")
	return o, err
}

// level chooses how much is logged. Seed 002 wants debug; on a mux the log goes
// to a place that somebody keeps, and every request of every host would be in it.
func (p *Program) level(flagged string, muxed bool) (slog.Level, error) {
	level := slog.LevelDebug
	if muxed {
		level = slog.LevelInfo
	}
	if flagged != "" {
		if known, ok := parseLevel(flagged); ok {
			return known, nil
		}
		return 0, fmt.Errorf("-log-level is %q, want debug, info, warn or error", flagged)
	}
	for _, name := range []string{"BOUVET_AGENT_LOG", "RUST_LOG"} {
		if known, ok := parseLevel(p.Getenv(name)); ok {
			return known, nil
		}
	}
	return level, nil
}

// parseLevel reads a level, alone or as Rust's filters have it: the last
// directive that is for everything or for the agent.
func parseLevel(text string) (level slog.Level, ok bool) {
	for directive := range strings.SplitSeq(text, ",") {
		value := strings.TrimSpace(directive)
		if target, v, found := strings.Cut(value, "="); found {
			if target != "bouvet_agent" {
				continue
			}
			value = v
		}
		switch strings.ToLower(value) {
		case "trace", "debug":
			level, ok = slog.LevelDebug, true
		case "info":
			level, ok = slog.LevelInfo, true
		case "warn":
			level, ok = slog.LevelWarn, true
		case "error", "off":
			level, ok = slog.LevelError, true
		}
	}
	return level, ok
}

// run serves until a signal, the end of the transport, or a failure.
func (p *Program) run(o *options, log *slog.Logger) error {
	isInit := os.Getpid() == 1
	signals := []os.Signal{unix.SIGTERM, unix.SIGINT}
	if isInit {
		// Busybox and systemd ask an init to end with these.
		signals = append(signals, unix.SIGUSR1, unix.SIGUSR2, unix.SIGPWR)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if isInit {
		if o.poweroff || o.restart {
			defer endMachine(o.restart, log)
		}
		if err := initGuest(log); err != nil {
			return err
		}
	} else if o.subreaper {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("cannot become a subreaper: %w", err)
		}
	}
	debug.SetMemoryLimit(memoryLimit())
	adopts := isInit || o.subreaper
	if adopts {
		defer proc.EndDescendants()
	}
	// One that listens on AF_VSOCK is in a machine of its own even if it is no init.
	alone := isInit || o.listen == "" && o.stdio == 0 && o.mux == ""
	m := proc.NewManager(proc.Options{Reap: adopts, Guest: alone, OOMProtect: adopts, Log: log})
	defer m.Close()
	so := Options{Log: log, Version: p.Version, Proc: m, ExecPort: o.execPort}
	if alone {
		so.System = kernelSystem{root: "/"}
	}
	s := NewServer(so)
	defer func() { _ = s.Close() }()
	switch {
	case o.listen != "":
		return p.serveUnix(ctx, s, o.listen, log)
	case o.stdio != 0:
		return p.serveStdio(ctx, s, uint32(o.stdio)) //nolint:gosec // checked.
	case o.mux != "":
		return p.serveMux(ctx, s, o, log)
	default:
		return p.serveVsock(ctx, s, o, log)
	}
}

// memoryLimit is where the garbage collector begins to hurry: half the memory
// that the machine has, which may be a small sandbox.
func memoryLimit() int64 {
	const least = 64 << 20
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return least
	}
	total := info.Totalram * uint64(info.Unit)
	return max(int64(min(total, 1<<62)/2), least)
}
