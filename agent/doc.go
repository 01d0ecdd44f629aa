// Package agent is the guest's side of Bouvet: the program in a sandbox that
// does what the host asks. It serves JSON-RPC 2.0 on port 52 (seed 002 and 003)
// and the streaming exec protocol on port 10700 (seed 001) over any listener:
// AF_VSOCK, the mux of package vsock, a unix socket, standard input and output.
//
// It believes nothing about its host but that the host may do everything: it
// runs commands and reads and writes files with its own rights, usually root's.
// What it must never do is fall over, hang, leak a process or take the guest's
// memory, because nothing in the guest can put it right.
package agent
