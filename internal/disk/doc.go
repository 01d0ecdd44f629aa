// Package disk makes the disks that hold machines' writable layers: sparse ext4 file
// systems, each a copy of an empty one that e2fsprogs makes once for each size.
package disk
