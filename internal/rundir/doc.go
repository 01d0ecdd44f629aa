// Package rundir keeps one directory per machine, whose lock says whether the
// process that owns the machine still lives.
//
// A directory appears under its name complete, already locked and with its
// record, by a rename; it disappears by a rename as well. The lock is an flock
// on a close-on-exec descriptor, so the kernel drops it with the owner however
// that dies. Whoever can take the lock of a directory knows the owner is dead.
package rundir
