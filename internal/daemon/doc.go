// Package daemon keeps the sandboxes of many users: it writes down what it is about
// to do before it does it, ends or pauses sandboxes whose time is over, wakes paused
// ones, and takes over those that live after its process was killed. What speaks to
// users, package e2b above all, stands on it and checks who may do what with the Owner
// that Authenticate gives it.
package daemon
