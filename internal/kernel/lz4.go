package kernel

import (
	"encoding/binary"
	"errors"
)

// A legacy LZ4 frame (lz4_Frame_format.md, "Legacy frame"): a magic number, then
// blocks of a length and as many bytes, each at most 8 MiB when decompressed.
const (
	lz4Magic    = 0x184c2102
	lz4BlockMax = 8 << 20
)

var errLZ4 = errors.New("damaged LZ4 data")

// lz4Legacy decompresses the frame at the beginning of src, up to limit bytes. What
// follows the last block is ignored: in a kernel that is its length.
func lz4Legacy(src []byte, limit int) ([]byte, error) {
	if len(src) < 4 || binary.LittleEndian.Uint32(src) != lz4Magic {
		return nil, errLZ4
	}
	src = src[4:]
	var out []byte
	for len(src) >= 4 {
		n := int(binary.LittleEndian.Uint32(src))
		if n == 0 || n > len(src)-4 {
			break
		}
		before := len(out)
		var err error
		if out, err = lz4Block(out, src[4:4+n], min(limit, before+lz4BlockMax)); err != nil {
			return nil, err
		}
		src = src[4+n:]
		if len(out)-before < lz4BlockMax {
			break // only the last block is shorter
		}
	}
	return out, nil
}

// lz4Block appends a decompressed block (lz4_Block_format.md) to out, which may
// grow to limit bytes.
func lz4Block(out, src []byte, limit int) ([]byte, error) {
	start := len(out)
	for i := 0; i < len(src); {
		token := int(src[i])
		i++
		literals, next, ok := lz4Length(src, i, token>>4)
		if !ok || literals > len(src)-next || len(out)+literals > limit {
			return nil, errLZ4
		}
		out = append(out, src[next:next+literals]...)
		if i = next + literals; i == len(src) {
			return out, nil // the last sequence has literals alone
		}
		if len(src)-i < 2 {
			return nil, errLZ4
		}
		offset := int(binary.LittleEndian.Uint16(src[i:]))
		match, next, ok := lz4Length(src, i+2, token&15)
		match += 4
		if !ok || offset == 0 || offset > len(out)-start || len(out)+match > limit {
			return nil, errLZ4
		}
		i = next
		for match > 0 { // a match may overlap what it makes
			n := min(match, offset)
			from := len(out) - offset
			out = append(out, out[from:from+n]...)
			match -= n
		}
	}
	return nil, errLZ4
}

// lz4Length reads what continues the length n of a token, at i.
func lz4Length(src []byte, i, n int) (length, next int, ok bool) {
	if n < 15 {
		return n, i, true
	}
	for i < len(src) && n <= 1<<30 {
		b := int(src[i])
		i++
		n += b
		if b < 255 {
			return n, i, true
		}
	}
	return 0, 0, false
}
