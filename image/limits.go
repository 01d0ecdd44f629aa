package image

import (
	"cmp"
	"errors"
)

// Limits bound what an import may bring in. The zero value of a field means its
// default.
type Limits struct {
	// TotalBytes bounds the contents of all files together; 16 GiB by default.
	TotalBytes int64
	// FileBytes bounds the content of one file; 8 GiB by default.
	FileBytes int64
	// Entries bounds the number of entries, over all layers; 4 Mi by default.
	Entries int64
	// NameBytes bounds the memory taken by names and targets of symbolic links;
	// 512 MiB by default.
	NameBytes int64
}

// Bounds of one path, which are Linux's.
const (
	maxPath  = 4096
	maxDepth = maxPath / 2
	maxLinks = 40 // symbolic links followed to find one parent directory
)

func (l Limits) withDefaults() Limits {
	return Limits{
		TotalBytes: cmp.Or(l.TotalBytes, 16<<30),
		FileBytes:  cmp.Or(l.FileBytes, 8<<30),
		Entries:    cmp.Or(l.Entries, 4<<20),
		NameBytes:  cmp.Or(l.NameBytes, 512<<20),
	}
}

// ErrRefused is wrapped by the errors for input that would be dangerous or
// impossible to put into an image: a path that leaves the root, a device, a
// size over a limit, a damaged archive. The message names the entry.
var ErrRefused = errors.New("refused")
