// Package server is what bouvet serve runs: one daemon per state directory, with its
// sandboxes (internal/daemon) and their API (e2b) behind listeners that bound what
// strangers can do: a unix socket for this user, TCP for those who have a key, and TLS
// under a domain of its own.
package server
