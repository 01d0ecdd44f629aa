package erofs

import (
	"io/fs"
	"syscall"
)

// blocks returns how many blocks of 512 bytes the file takes on disk.
func blocks(info fs.FileInfo) int64 { return info.Sys().(*syscall.Stat_t).Blocks }
