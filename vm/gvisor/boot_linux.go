package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"
	"gvisor.dev/gvisor/runsc/flag"
)

// Annotations of our own in the OCI specification. It is the one thing of ours
// that reaches the sentry, whose environment is empty.
const (
	annotationMemory = "run.bouvet.memory-bytes"
	annotationCPUs   = "run.bouvet.cpus"
	annotationBound  = "run.bouvet.host-bound"
)

// bootCommand is runsc's boot with the size that the guest is to see. runsc reads
// it from the cgroup it made; ours is made outside of it (--ignore-cgroups), so it
// would show the host's.
type bootCommand struct{ sentrycmd.Boot }

// Execute implements subcommands.Command. The sentry executes itself a second time with
// the flags that are set by then, so setting them twice is harmless.
func (b *bootCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	if err := b.apply(f); err != nil {
		util.Fatalf("cannot boot: %v", err) // to the log: standard error is /dev/null here
	}
	return b.Boot.Execute(ctx, f, args...)
}

func (b *bootCommand) apply(f *flag.FlagSet) error {
	fd, err := flagFD(f, "spec-fd")
	if err != nil {
		return err
	}
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	// pread leaves the descriptor's offset to runsc.
	r := io.NewSectionReader(preader(fd), 0, math.MaxInt32)
	if err := json.NewDecoder(r).Decode(&spec); err != nil { //nolint:forbidigo // written by our own parent
		return fmt.Errorf("specification: %w", err)
	}
	for name, annotation := range map[string]string{"total-memory": annotationMemory, "cpu-num": annotationCPUs} {
		if v := spec.Annotations[annotation]; v != "" {
			if err := f.Set(name, v); err != nil {
				return fmt.Errorf("annotation %s: %w", annotation, err)
			}
		}
	}
	if spec.Annotations[annotationBound] != "" {
		return dieWithOwner(f)
	}
	return nil
}

// dieWithOwner ends the sentry when the last write end of the guest's standard
// input closes: the owner holds it, so this happens when the owner dies, and
// nothing the guest does can prevent it.
func dieWithOwner(f *flag.FlagSet) error {
	fd, err := flagFD(f, "stdio-fds")
	if err != nil {
		return err
	}
	// The guest may close its own; runsc closes that one then.
	fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	go func() {
		fds := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a descriptor fits
		for {
			_, err := unix.Ppoll(fds, nil, nil)
			if fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0 {
				os.Exit(exitOrphan)
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				os.Exit(exitOrphan)
			}
		}
	}()
	return nil
}

// flagFD is the (first) descriptor that a flag holds.
func flagFD(f *flag.FlagSet, name string) (int, error) {
	fl := f.Lookup(name)
	if fl == nil {
		return 0, fmt.Errorf("no flag %s", name)
	}
	s, _, _ := strings.Cut(strings.Trim(fl.Value.String(), "[]"), ",")
	fd, err := strconv.Atoi(s)
	if err != nil || fd < 0 {
		return 0, fmt.Errorf("flag %s holds %q, not a descriptor", name, fl.Value)
	}
	return fd, nil
}

type preader int

func (p preader) ReadAt(b []byte, off int64) (int, error) {
	n, err := unix.Pread(int(p), b, off)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}
