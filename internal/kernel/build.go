package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// buildLog is the file in the store's directory with what the last build said.
	buildLog = "build.log"
	// compileSteps is about how many lines make says for a kernel of ours.
	compileSteps = 2150
)

// BuildOptions are the options of Build. The zero value is useful.
type BuildOptions struct {
	// Jobs is how many compilers run at once; 0 means one for each processor.
	Jobs int
	// Fragment is set in the configuration on top of ours, and wins over it.
	Fragment []byte
	// Progress is told of every step; nil means nobody is.
	Progress Progress
}

// Build makes a small kernel, with everything that a guest needs built in, from the
// distribution's source, which apt fetches and verifies, and puts it into the store.
// It needs a compiler, no privileges, 1.5 GiB of disk for the time being and five to
// ten minutes of a processor's time. When ctx ends, so do all processes of the build,
// and nothing is left but the log (see BuildLog).
//
// Every line of Fragment and of the options' own has to hold in the configuration
// that comes out.
func (s *Store) Build(ctx context.Context, o BuildOptions) (_ Kernel, err error) {
	say := o.Progress.orNone()
	want, err := wanted(o.Fragment)
	if err != nil {
		return Kernel{}, err
	}
	if err := checkTools(ctx); err != nil {
		return Kernel{}, err
	}
	tmp, done, err := s.workDir()
	if err != nil {
		return Kernel{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	source, err := fetchSource(ctx, tmp, say)
	if err != nil {
		return Kernel{}, err
	}
	log, err := newMakeLog(s.BuildLog())
	if err != nil {
		return Kernel{}, err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	b := &build{source: source, tmp: tmp, log: log}
	say("configuring", 0, 0)
	dotConfig, err := b.configure(ctx, want)
	if err != nil {
		return Kernel{}, err
	}
	jobs := o.Jobs
	if jobs <= 0 {
		jobs = runtime.NumCPU()
	}
	log.each = func(n int64) { say("compiling", n, max(n, compileSteps)) }
	if err := b.make(ctx, "-j"+strconv.Itoa(jobs), "vmlinux"); err != nil {
		return Kernel{}, err
	}
	return b.store(ctx, s, dotConfig, say)
}

// BuildLog is the path of the log of the last build: what make said, at most 8 MiB.
func (s *Store) BuildLog() string { return filepath.Join(s.dir, buildLog) }

// wanted is our configuration with extra on top.
func wanted(extra []byte) (config, error) {
	want, err := parseConfig(Fragment, true)
	if err != nil {
		return nil, err
	}
	more, err := parseConfig(extra, true)
	if err != nil {
		return nil, err
	}
	maps.Copy(want, more)
	if want.value("CONFIG_MODULES") != "n" {
		return nil, errors.New("cannot build kernel: it is to have everything built in, so CONFIG_MODULES has to be n")
	}
	return want, nil
}

// A build is one under way.
type build struct {
	source *source
	tmp    string
	log    *makeLog
}

// configure makes the configuration, and returns it once all that is wanted holds.
func (b *build) configure(ctx context.Context, want config) ([]byte, error) {
	if err := writeFile(b.fragment(), want.format()); err != nil {
		return nil, fmt.Errorf("cannot configure kernel: %w", err)
	}
	if err := b.make(ctx, "allnoconfig"); err != nil {
		return nil, err
	}
	data, err := readFile(filepath.Join(b.source.dir, ".config"), configMax)
	if err != nil {
		return nil, fmt.Errorf("cannot configure kernel: %w", err)
	}
	have, err := parseConfig(data, false)
	if err != nil {
		return nil, err
	}
	if missing := have.missing(want); len(missing) > 0 {
		return nil, fmt.Errorf("cannot configure kernel: of what was asked for, this does not hold (is it misspelled, or does it depend on something that is not set?): %s", strings.Join(missing, ", "))
	}
	if unmet := have.unmet(nil); len(unmet) > 0 {
		return nil, fmt.Errorf("cannot configure kernel: a guest needs more: %s", strings.Join(unmet, ", "))
	}
	return data, nil
}

func (b *build) fragment() string { return filepath.Join(b.tmp, "wanted.config") }

// make runs make in the source, with nothing of our environment: a make above us
// would have its say there.
func (b *build) make(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "make", args...)
	cmd.Dir = b.source.dir
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TMPDIR=" + b.tmp, "HOME=" + b.tmp, "KCONFIG_ALLCONFIG=" + b.fragment(),
		// The same source gives the same kernel, wherever it is made.
		"KBUILD_BUILD_USER=bouvet", "KBUILD_BUILD_HOST=bouvet", "KBUILD_BUILD_VERSION=1",
		"KBUILD_BUILD_TIMESTAMP=" + b.source.date.UTC().Format(time.DateOnly),
	}
	cmd.Stdout, cmd.Stderr = b.log, b.log
	if err := runGroup(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("cannot build kernel: %w", context.Cause(ctx))
		}
		return fmt.Errorf("cannot build kernel: make %s: %w: %s; see %s", args[len(args)-1], err, b.log.complaint(), b.log.path)
	}
	return nil
}

// store puts the kernel that was made into s.
func (b *build) store(ctx context.Context, s *Store, dotConfig []byte, say Progress) (Kernel, error) {
	made, stripped := filepath.Join(b.source.dir, imageName), filepath.Join(b.tmp, "stripped")
	if _, err := tool(ctx, b.tmp, "strip", "--strip-all", "-o", stripped, made); err != nil {
		return Kernel{}, err
	}
	image, err := readFile(stripped, imageMax)
	if err != nil {
		return Kernel{}, fmt.Errorf("cannot read kernel: %w", err)
	}
	if err := checkELF(image); err != nil {
		return Kernel{}, err
	}
	m := Manifest{Release: releaseOf(image), Package: SourcePackage, Version: b.source.version, Source: b.source.digest}
	if m.Release == "" {
		return Kernel{}, errNoRelease
	}
	say("storing "+m.Release, 0, 0)
	return s.addParts(m, image, nil, dotConfig)
}
