package kernel

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"strings"
)

// elfFile makes an ELF file with a note segment and a section .modinfo.
func elfFile(notes []byte, modinfo ...string) []byte {
	const headerSize, progSize, sectionSize = 64, 56, 64
	names := "\x00.modinfo\x00.shstrtab\x00"
	info := strings.Join(modinfo, "\x00") + "\x00"
	notesAt := uint64(headerSize + progSize)
	infoAt := notesAt + uint64(len(notes))
	namesAt := infoAt + uint64(len(info))
	sectionsAt := namesAt + uint64(len(names))
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Phoff: headerSize, Shoff: sectionsAt, Ehsize: headerSize, Phentsize: progSize, Phnum: 1,
		Shentsize: sectionSize, Shnum: 3, Shstrndx: 2,
	})
	put(elf.Prog64{Type: uint32(elf.PT_NOTE), Off: notesAt, Filesz: uint64(len(notes)), Memsz: uint64(len(notes))})
	b.Write(notes)
	b.WriteString(info)
	b.WriteString(names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: infoAt, Size: uint64(len(info))})
	put(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: namesAt, Size: uint64(len(names))})
	return b.Bytes()
}

// note makes an ELF note of four bytes.
func note(name string, kind uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(name)+1))
	b = binary.LittleEndian.AppendUint32(b, 4)
	b = binary.LittleEndian.AppendUint32(b, kind)
	b = append(b, name...)
	b = append(b, make([]byte, 4-len(name)%4)...)
	return append(b, 1, 2, 3, 4)
}

// vmlinux is an image that can be started.
func vmlinux() []byte { return elfFile(append(note("GNU", 3), note("Xen", pvhNote)...)) }

// literals compresses data into an LZ4 block, badly.
func literals(data []byte) []byte {
	if len(data) < 15 {
		return append([]byte{byte(len(data)) << 4}, data...)
	}
	b := []byte{0xf0}
	rest := len(data) - 15
	for ; rest >= 255; rest -= 255 {
		b = append(b, 255)
	}
	return append(append(b, byte(rest)), data...)
}

// frame makes a legacy frame of blocks.
func frame(blocks ...[]byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, lz4Magic)
	for _, block := range blocks {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(block)))
		b = append(b, block...)
	}
	return b
}

// bzImage wraps an image as the kernel's build does.
func bzImage(image []byte) []byte {
	payload := binary.LittleEndian.AppendUint32(frame(literals(image)), uint32(len(image)))
	b := make([]byte, 2*sector)
	b[setupSectsAt] = 1
	copy(b[headerMagicAt:], "HdrS")
	binary.LittleEndian.PutUint32(b[payloadOffsetAt:], 16)
	binary.LittleEndian.PutUint32(b[payloadLengthAt:], uint32(len(payload)))
	return append(append(b, make([]byte, 16)...), payload...)
}
