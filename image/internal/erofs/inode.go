package erofs

import "slices"

// File types, as in the st_mode of stat(2).
const (
	TypeMask    uint32 = 0o170000
	TypeFIFO    uint32 = 0o010000
	TypeDir     uint32 = 0o040000
	TypeRegular uint32 = 0o100000
	TypeSymlink uint32 = 0o120000
)

// An Inode is a file, directory, symbolic link or FIFO of the image. Names that
// refer to one *Inode are hard links.
type Inode struct {
	// Mode holds the type and the permission bits, as in st_mode.
	Mode uint32
	// UID and GID own the inode.
	UID, GID uint32
	// MtimeSec and MtimeNsec are the time of last modification since the epoch.
	// Seconds may be negative; nanoseconds are below 1e9.
	MtimeSec  int64
	MtimeNsec uint32
	// Size and Block are what Writer.Append returned for a regular file's content.
	Size  int64
	Block uint32
	// Target is where a symbolic link points, at most MaxTarget bytes.
	Target string
	// Entries are a directory's entries by name, without "." and "..".
	Entries map[string]Entry

	nid    uint64
	nlink  uint32
	ino    uint32
	inline bool
}

// An Entry is a name's place in a directory.
type Entry struct {
	Inode *Inode
	// Layer is a mark for whoever builds the tree. The image does not hold it.
	Layer int
}

// Type returns the type bits of the mode.
func (n *Inode) Type() uint32 { return n.Mode & TypeMask }

// IsDir reports whether the inode is a directory.
func (n *Inode) IsDir() bool { return n.Type() == TypeDir }

// dirent is one record of a directory, "." and ".." included.
type dirent struct {
	name  string
	inode *Inode
}

// dirents returns what the image holds for the directory, in the order the
// format demands: by bytes, the two dots in no special place.
func (n *Inode) dirents(parent *Inode) []dirent {
	list := make([]dirent, 0, len(n.Entries)+2)
	list = append(list, dirent{".", n}, dirent{"..", parent})
	for name, e := range n.Entries {
		list = append(list, dirent{name, e.Inode})
	}
	slices.SortFunc(list, func(a, b dirent) int {
		switch {
		case a.name < b.name:
			return -1
		case a.name > b.name:
			return 1
		}
		return 0
	})
	return list
}

// fillBlock returns how many of list fit into one block, and the bytes they take.
func fillBlock(list []dirent) (n, used int) {
	for n < len(list) {
		next := used + direntSize + len(list[n].name)
		if next > BlockSize {
			break
		}
		used = next
		n++
	}
	return n, used
}

// direntBytes returns the length of a directory's content: whole blocks, but
// for the last.
func direntBytes(list []dirent) int64 {
	var total int64
	for len(list) > 0 {
		n, used := fillBlock(list)
		list = list[n:]
		if len(list) > 0 {
			used = BlockSize
		}
		total += int64(used)
	}
	return total
}

// fileType is the type as a directory entry records it.
func (n *Inode) fileType() byte {
	switch n.Type() {
	case TypeRegular:
		return 1
	case TypeDir:
		return 2
	case TypeFIFO:
		return 5
	case TypeSymlink:
		return 7
	}
	return 0
}
