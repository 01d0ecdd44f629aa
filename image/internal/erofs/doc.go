// Package erofs writes EROFS images in the one layout that every reader we care
// about can map into memory: the Linux kernel and gVisor's sentry.
//
// File contents are uncompressed and begin on a block of their own
// ("flat plain"): gVisor refuses to map a file whose tail lives beside its
// inode, which breaks mmap of everything smaller than a block (locale files,
// small libraries). Inodes carry no extended attributes, which gVisor cannot
// read. Hard links share an inode. Everything that the input does not determine
// is fixed, so that the same input gives the same bytes.
//
// The format is described at https://docs.kernel.org/filesystems/erofs.html and
// in fs/erofs/erofs_fs.h of the Linux source.
package erofs

// BlockSize is the block size of every image, in bytes: the page size of the
// machines we run on, which EROFS requires.
const BlockSize = 4096

// Bounds of the format.
const (
	// MaxName is the longest name of a directory entry, in bytes.
	MaxName = 255
	// MaxTarget is the longest target of a symbolic link, in bytes.
	MaxTarget = 4095
	// MaxLinks is the greatest number of names one inode can have.
	MaxLinks = 1<<32 - 1
)

// On-disk sizes and offsets.
const (
	superOffset = 1024
	superSize   = 128
	inodeSize   = 64
	slotSize    = 32
	direntSize  = 12
	magic       = 0xe0f5e1e2

	compatChecksum = 1 << 0
	compatMtime    = 1 << 1

	layoutPlain  = 0
	layoutInline = 2
)
