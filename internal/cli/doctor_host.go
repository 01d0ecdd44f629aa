package cli

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/statedir"
)

const (
	// lowDisk is where the doctor warns, tightDisk where it fails, in bytes.
	lowDisk   = 2 << 30
	tightDisk = 64 << 20
)

func (c *doctorCommand) checkHost(context.Context) check {
	var u unix.Utsname
	release := "unknown kernel"
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
	}
	name := fmt.Sprintf("uid %d", os.Geteuid())
	if who, err := user.Current(); err == nil {
		name = who.Username
	}
	detail := fmt.Sprintf("%s %s, %d CPUs, as %s, bouvet %s", release, runtime.GOARCH, runtime.NumCPU(), name, c.found.Versions.Bouvet)
	if os.Geteuid() == 0 {
		return ok("%s", detail)
	}
	if why := userNamespacesOff(); why != "" {
		return warn("run bouvet as root, or as root: sysctl -w "+why, "%s; user namespaces are switched off by %s", detail, why)
	}
	return ok("%s", detail)
}

// userNamespacesOff names the setting that keeps unprivileged users from making
// user namespaces, as it would have to be; empty if there is none.
func userNamespacesOff() string {
	for _, s := range []struct{ name, path, bad, good string }{
		{"user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", "0", "15000"},
		{"kernel.unprivileged_userns_clone", "/proc/sys/kernel/unprivileged_userns_clone", "0", "1"},
		{"kernel.apparmor_restrict_unprivileged_userns", "/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "0"},
	} {
		if b, err := os.ReadFile(s.path); err == nil && strings.TrimSpace(string(b)) == s.bad {
			return s.name + "=" + s.good
		}
	}
	return ""
}

func (c *doctorCommand) checkState(context.Context) check {
	dir, err := statedir.Default()
	if err != nil {
		return c.fail(err, "")
	}
	c.found.StateDir = dir
	if _, err := statedir.Machines(dir); err != nil {
		return c.fail(err, "")
	}
	if c.store, err = c.backend.Images(); err != nil {
		return c.fail(err, "")
	}
	return ok("%s", dir)
}

func (c *doctorCommand) checkDisk(context.Context) check {
	var s unix.Statfs_t
	if err := unix.Statfs(c.found.StateDir, &s); err != nil {
		return failed(fmt.Errorf("cannot look at the file system of %s: %w", c.found.StateDir, err), "")
	}
	free := int64(s.Bavail) * s.Bsize //nolint:gosec // a file system of 8 EiB is not at hand.
	const remedy = "bouvet image rm what is not needed, or BOUVET_STATE_DIR on a larger file system"
	switch {
	case free < tightDisk:
		return failed(fmt.Errorf("only %s are free for images", humanSize(free)), remedy)
	case free < lowDisk:
		return warn(remedy, "only %s are free for images", humanSize(free))
	}
	return ok("%s are free for images", humanSize(free))
}

func (c *doctorCommand) checkAgent(context.Context) check {
	agent, err := guest.Resolve()
	if err != nil {
		return c.fail(err, "")
	}
	detail := fmt.Sprintf("%s, %s, %s", agent.Source, shortDigest(agent.Digest), humanSize(int64(len(agent.Binary))))
	if agent.Source != guest.SourceEmbedded {
		return warn("make build", "%s: %s; sandboxes start more slowly than with the embedded one", detail, agent.Path)
	}
	return ok("%s", detail)
}
