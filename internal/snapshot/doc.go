// Package snapshot keeps the saved state of a machine as a directory: the driver's
// files, and a manifest that says what they belong to and what their contents are.
// Nothing is taken from one that does not match, to the bit.
package snapshot
