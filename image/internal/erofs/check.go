package erofs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Check reads the superblock of an image of the given length and returns an
// error if it is not one that this package writes: wrong magic number or
// checksum, features that gVisor cannot read, or a length that does not match.
// It reads one block, so it says nothing about the rest.
func Check(r io.ReaderAt, size int64) error {
	b := make([]byte, BlockSize)
	if _, err := r.ReadAt(b, 0); err != nil {
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%d bytes are too short for an EROFS image", size)
		}
		return fmt.Errorf("cannot read superblock: %w", err)
	}
	sb := b[superOffset : superOffset+superSize]
	le := binary.LittleEndian
	if got := le.Uint32(sb); got != magic {
		return fmt.Errorf("magic number is %#x, not that of EROFS", got)
	}
	if got, want := le.Uint32(sb[4:]), checksum(b); got != want {
		return fmt.Errorf("checksum of the superblock is %#x, want %#x", got, want)
	}
	if sb[12] != 12 {
		return fmt.Errorf("block size is 2^%d bytes, want 2^12", sb[12])
	}
	if got := le.Uint32(sb[80:]); got != 0 {
		return fmt.Errorf("features %#x are not supported", got)
	}
	if got := int64(le.Uint32(sb[36:])) * BlockSize; got != size {
		return fmt.Errorf("file has %d bytes, its superblock says %d", size, got)
	}
	return nil
}
