// Package image makes and keeps root file systems.
//
// A tarball, a directory or a sequence of layers becomes an EROFS image: one
// read-only file, which every sandbox of every driver shares. An image is named
// by its content: the digest is the SHA-256 of the file, and the same input
// always gives the same file. A [Store] keeps images under names; whoever uses
// one holds it with [Store.Acquire], so that nobody removes it underneath.
// [BuildDefault] makes the image that sandboxes get when no other is asked for.
//
// What images hold: regular files, directories, symbolic links and FIFOs, with
// owners, permissions (set-user-ID included), modification times and hard links.
// What they do not: extended attributes, which gVisor cannot read, so file
// capabilities are lost; device nodes, which the sandbox supplies in /dev.
//
// Input is not trusted. Nothing of it is ever unpacked into a host directory:
// paths exist in memory and in the image alone. What could not be represented
// safely is refused with [ErrRefused], and [Limits] bound the rest.
package image
