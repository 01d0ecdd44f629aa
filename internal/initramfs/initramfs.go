// Package initramfs writes the first file system of a guest: a cpio archive in the
// "newc" format, which the kernel unpacks into memory
// (Documentation/driver-api/early-userspace/buffer-format.rst).
package initramfs

import (
	"fmt"
	"io"
)

// Modes of an entry: its type and permissions, as in stat(2).
const (
	ModeDir  = 0o040755
	ModeProg = 0o100555
	ModeFile = 0o100444
	ModeChar = 0o020600
)

// An Entry is a file of the archive.
type Entry struct {
	// Name is the path without a leading slash. A directory comes before what is in it.
	Name string
	// Mode is its type and permissions.
	Mode uint32
	// Data is a regular file's content.
	Data []byte
	// Major and Minor number a device.
	Major, Minor uint32
}

const (
	magic   = "070701"
	trailer = "TRAILER!!!"
	// nameMax is the longest name the kernel takes, its terminator included.
	nameMax = 4096
	align   = 4
)

// Write writes an archive of entries to w. All files belong to root and have no
// time, so that the same entries make the same archive.
func Write(w io.Writer, entries []Entry) error {
	a := archive{w: w}
	for i, e := range entries {
		if e.Name == "" || e.Name[0] == '/' || len(e.Name) >= nameMax || e.Name == trailer {
			return fmt.Errorf("cannot write initramfs: bad name %.100q", e.Name)
		}
		if uint64(len(e.Data)) > 1<<32-1 {
			return fmt.Errorf("cannot write initramfs: %s is too large", e.Name)
		}
		a.entry(uint32(i)+1, e)
	}
	a.entry(0, Entry{Name: trailer})
	if a.err != nil {
		return fmt.Errorf("cannot write initramfs: %w", a.err)
	}
	return nil
}

// archive remembers the first error and where it is.
type archive struct {
	w   io.Writer
	n   int
	err error
}

func (a *archive) entry(inode uint32, e Entry) {
	links := 1
	if e.Mode == ModeDir {
		links = 2
	}
	const noID, noTime, noDevice, noSum = 0, 0, 0, 0
	a.write(fmt.Appendf(nil, "%s%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", magic,
		inode, e.Mode, noID, noID, links, noTime, len(e.Data), noDevice, noDevice, e.Major, e.Minor, len(e.Name)+1, noSum))
	a.write(append([]byte(e.Name), 0))
	a.pad()
	a.write(e.Data)
	a.pad()
}

func (a *archive) pad() { a.write(make([]byte, (align-a.n%align)%align)) }

func (a *archive) write(p []byte) {
	if a.err != nil {
		return
	}
	n, err := a.w.Write(p)
	a.n += n
	a.err = err
}
