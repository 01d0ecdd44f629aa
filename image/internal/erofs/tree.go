package erofs

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
)

// writeTree writes what follows the contents of files: blocks of directories
// and links that are not inline, then the metadata area; at last the superblock,
// without which the file is no image.
func (w *Writer) writeTree(ctx context.Context, p *plan, end int64) error {
	metaStart := end + p.plain
	p.stats.Size = metaStart + roundUp(p.meta)
	if p.stats.Size/BlockSize > math.MaxUint32 {
		return errors.New("image is too large for the format")
	}
	plain := bufio.NewWriterSize(io.NewOffsetWriter(w.out, end), 1<<16)
	meta := bufio.NewWriterSize(io.NewOffsetWriter(w.out, metaStart), 1<<18)
	next, pos := end, int64(0)
	for _, e := range p.order {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := e.inode
		tail, size := n.content(e.parent)
		addr := n.Block
		if n.Type() != TypeRegular {
			addr = 0
		}
		if !n.inline && len(tail) > 0 {
			addr = uint32(next / BlockSize) //nolint:gosec // below Size, which is checked
			tail = append(tail, zeros[:roundUp(int64(len(tail)))-int64(len(tail))]...)
			if _, err := plain.Write(tail); err != nil {
				return fmt.Errorf("cannot write image: %w", err)
			}
			next += int64(len(tail))
			tail = nil
		}
		at := int64(n.nid) * slotSize //nolint:gosec // made from an int64
		record := append(n.record(addr, size), tail...)
		if _, err := meta.Write(append(make([]byte, at-pos, at-pos+int64(len(record))), record...)); err != nil {
			return fmt.Errorf("cannot write image: %w", err)
		}
		pos = at + int64(len(record))
	}
	if _, err := meta.Write(make([]byte, roundUp(p.meta)-pos)); err != nil {
		return fmt.Errorf("cannot write image: %w", err)
	}
	if err := errors.Join(plain.Flush(), meta.Flush()); err != nil {
		return fmt.Errorf("cannot write image: %w", err)
	}
	if _, err := w.out.WriteAt(superblock(p, metaStart), 0); err != nil {
		return fmt.Errorf("cannot write image: %w", err)
	}
	return nil
}

// content returns what the image holds for n outside the contents of files, and
// the size that stat(2) is to show.
func (n *Inode) content(parent *Inode) ([]byte, int64) {
	switch n.Type() {
	case TypeRegular:
		return nil, n.Size
	case TypeSymlink:
		return []byte(n.Target), int64(len(n.Target))
	case TypeDir:
		b := encodeDirents(n.dirents(parent))
		return b, int64(len(b))
	}
	return nil, 0
}

// record encodes the extended form of the inode.
func (n *Inode) record(addr uint32, size int64) []byte {
	var b [inodeSize]byte
	le := binary.LittleEndian
	layout := uint16(layoutPlain)
	if n.inline {
		layout = layoutInline
	}
	le.PutUint16(b[0:], 1|layout<<1)
	le.PutUint16(b[4:], uint16(n.Mode)) //nolint:gosec // type and permissions fit
	le.PutUint64(b[8:], uint64(size))   //nolint:gosec // never negative
	le.PutUint32(b[16:], addr)
	le.PutUint32(b[20:], n.ino)
	le.PutUint32(b[24:], n.UID)
	le.PutUint32(b[28:], n.GID)
	le.PutUint64(b[32:], uint64(n.MtimeSec)) //nolint:gosec // two's complement is the format
	le.PutUint32(b[40:], n.MtimeNsec)
	le.PutUint32(b[44:], n.nlink)
	return b[:]
}

// encodeDirents encodes a directory: in each block the records, then the names.
func encodeDirents(list []dirent) []byte {
	out := make([]byte, 0, direntBytes(list))
	le := binary.LittleEndian
	for len(list) > 0 {
		n, used := fillBlock(list)
		name := n * direntSize
		for _, d := range list[:n] {
			out = le.AppendUint64(out, d.inode.nid)
			out = le.AppendUint16(out, uint16(name)) //nolint:gosec // below a block
			out = append(out, d.inode.fileType(), 0)
			name += len(d.name)
		}
		for _, d := range list[:n] {
			out = append(out, d.name...)
		}
		if list = list[n:]; len(list) > 0 {
			out = append(out, zeros[:BlockSize-used]...)
		}
	}
	return out
}

// superblock returns the first block. Times and the UUID are zero: they would
// make equal inputs differ.
func superblock(p *plan, metaStart int64) []byte {
	b := make([]byte, BlockSize)
	sb := b[superOffset:]
	le := binary.LittleEndian
	le.PutUint32(sb[0:], magic)
	le.PutUint32(sb[8:], compatChecksum|compatMtime)
	sb[12] = 12                                           // log2 of the block size
	le.PutUint16(sb[14:], uint16(p.order[0].inode.nid))   //nolint:gosec // the first one
	le.PutUint64(sb[16:], uint64(p.stats.Inodes))         //nolint:gosec // never negative
	le.PutUint32(sb[36:], uint32(p.stats.Size/BlockSize)) //nolint:gosec // checked by writeTree
	le.PutUint32(sb[40:], uint32(metaStart/BlockSize))    //nolint:gosec // below Size
	le.PutUint32(sb[4:], checksum(b))
	return b
}

// checksum is the CRC-32C of the block from the superblock on, not inverted,
// with the checksum's own field as zero.
func checksum(block []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, block[superOffset:superOffset+4])
	sum = crc32.Update(sum, table, zeros[:4])
	return ^crc32.Update(sum, table, block[superOffset+8:BlockSize])
}
