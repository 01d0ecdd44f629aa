package kernel

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

const (
	// imageMax bounds a kernel image, compressed or not, in bytes.
	imageMax = 512 << 20
	// The x86 boot protocol's header (Documentation/arch/x86/boot.rst).
	setupSectsAt, headerMagicAt             = 0x1f1, 0x202
	payloadOffsetAt, payloadLengthAt        = 0x248, 0x24c
	headerEnd                               = 0x250
	sector                                  = 512
	pvhNote                          uint32 = 18 // XEN_ELFNOTE_PHYS32_ENTRY
)

// uncompress returns the ELF image inside a bzImage; an ELF image is its own.
func uncompress(ctx context.Context, image []byte) ([]byte, error) {
	if bytes.HasPrefix(image, []byte(elf.ELFMAG)) {
		return image, checkELF(image)
	}
	if len(image) < headerEnd || string(image[headerMagicAt:headerMagicAt+4]) != "HdrS" {
		return nil, errors.New("cannot read kernel: it is neither a bzImage nor an ELF image")
	}
	setup := int(image[setupSectsAt])
	if setup == 0 {
		setup = 4
	}
	begin := uint64(setup+1)*sector + uint64(binary.LittleEndian.Uint32(image[payloadOffsetAt:]))
	end := begin + uint64(binary.LittleEndian.Uint32(image[payloadLengthAt:]))
	if end > uint64(len(image)) || end < begin+4 {
		return nil, errors.New("cannot read kernel: its payload is cut off")
	}
	payload := image[begin:end]
	out, err := unpack(ctx, payload, imageMax)
	if err != nil {
		return nil, fmt.Errorf("cannot read kernel: %w", err)
	}
	// The last four bytes of the payload are the image's length.
	if want := binary.LittleEndian.Uint32(payload[len(payload)-4:]); uint64(want) != uint64(len(out)) {
		return nil, fmt.Errorf("cannot read kernel: it has %d bytes and says %d", len(out), want)
	}
	return out, checkELF(out)
}

// checkELF makes sure that a virtual machine monitor can start the image by itself.
func checkELF(image []byte) error {
	f, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return fmt.Errorf("cannot read kernel: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Machine != elf.EM_X86_64 {
		return fmt.Errorf("cannot use kernel: it is for %v, %v, not for x86-64", f.Class, f.Machine)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > 1<<20 {
			continue
		}
		notes := make([]byte, p.Filesz)
		if _, err := p.ReadAt(notes, 0); err != nil {
			return fmt.Errorf("cannot read kernel: %w", err)
		}
		if hasPVH(notes) {
			return nil
		}
	}
	return errors.New("cannot use kernel: it has no PVH entry (CONFIG_PVH)")
}

// banner is linux_banner (init/version-timestamp.c).
var banner = regexp.MustCompile(`Linux version ([0-9][0-9A-Za-z.+~_-]{0,63}) \(`)

// releaseOf is what uname -r will say, as the image tells it; empty if it does not.
func releaseOf(image []byte) string {
	if m := banner.FindSubmatch(image); m != nil {
		return string(m[1])
	}
	return ""
}

func hasPVH(notes []byte) bool {
	for len(notes) >= 12 {
		name, desc := binary.LittleEndian.Uint32(notes), binary.LittleEndian.Uint32(notes[4:])
		kind := binary.LittleEndian.Uint32(notes[8:])
		size := uint64(12) + (uint64(name)+3)&^3 + (uint64(desc)+3)&^3
		if size > uint64(len(notes)) {
			return false
		}
		if kind == pvhNote && name == 4 && string(notes[12:15]) == "Xen" {
			return true
		}
		notes = notes[size:]
	}
	return false
}
