// Package cgroup limits what a machine may take of the host: memory, processor time
// and processes, by cgroups of version 1 or 2, whichever this process may make.
package cgroup

// DefaultParent is the cgroup under which machines are put.
const DefaultParent = "bouvet"
