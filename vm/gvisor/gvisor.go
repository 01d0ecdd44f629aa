// Package gvisor is the embedded driver: each machine is a gVisor kernel (runsc's
// sentry on its systrap platform) that this very binary becomes. Nothing needs to
// be installed and no KVM is needed.
//
// The root file system is an EROFS image that the sentry maps itself, under a
// writable layer in memory. There is no gofer process, no bind mount and no
// network device: nothing of the host's file system can be reached, and the only
// way in or out is a socket pair whose guest end is PID 1's descriptor 3.
//
// A machine is paused and saved over runsc's control socket. A snapshot is one file,
// the sentry's state with the guest's memory and writable layer in it; it can be
// restored where gVisor's version, the processor, the image and the agent are the same.
// Every copy has memory of its own: restoring takes as long as creating, and saves what
// the guest did since.
package gvisor

import (
	"log/slog"

	"github.com/bouvet-run/bouvet/internal/cgroup"
)

// Name is the driver's name.
const Name = "gvisor"

// DefaultCgroupParent is the cgroup under which machines are put.
const DefaultCgroupParent = cgroup.DefaultParent

// Options configures a Driver.
type Options struct {
	// StateDir is where machines are recorded, under machines/. It must belong to
	// the user and not be writable for others. Required.
	StateDir string
	// AgentImage is the path of an EROFS image with the guest's agent, mounted
	// read-only at /.bouvet; its file /agent becomes the guest's PID 1. Required.
	AgentImage string
	// Exe is the executable that turns into runsc, which calls Dispatch first of
	// all; empty means the running one. A binary built with the race detector
	// cannot run a sentry and needs another one here.
	Exe string
	// CgroupParent is the cgroup that holds the machines' cgroups, relative to the
	// root of the hierarchy (for an unprivileged user on cgroup v2, to the topmost
	// cgroup delegated to it); empty means DefaultCgroupParent.
	CgroupParent string
	// Log receives events that belong to no machine; nil means none.
	Log *slog.Logger
}

// AgentPath is where the agent stands in the guest, and its argv[0]: a program
// that serves as its own agent knows by it that it is to be one.
const AgentPath = agentMount + "/agent"

const (
	agentMount = "/.bouvet"
	// channelFD is the agent's descriptor for its channel.
	channelFD = 3
)
