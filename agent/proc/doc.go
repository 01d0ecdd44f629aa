// Package proc runs and ends processes for the agent.
//
// Each process leads a session and a process group of its own, so that it can be
// ended with all that it started. Its output ends when it ends, even when a
// background child still holds the other end of the pipe, so nobody ever waits
// for a daemon. When the agent is a guest's init or a subreaper, one place reaps
// every child, its own and orphans alike, and no exit status can reach the wrong
// process, because a process number is only used for a signal or a lookup while
// the process that has it cannot have been reaped.
//
// The package knows nothing of the protocols.
package proc
