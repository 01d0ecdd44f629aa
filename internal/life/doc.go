// Package life is what the machines of all drivers have in common as processes of
// this host: how one is recorded before it is made, watched while it runs, dialled,
// destroyed by one attempt that its callers share, and how the leftovers of dead
// owners are found and removed.
package life
