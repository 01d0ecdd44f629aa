package qemu

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"github.com/bouvet-run/bouvet/internal/initramfs"
	"github.com/bouvet-run/bouvet/internal/kernel"
)

// hello is what tinyInit writes to its console: nobody else writes this byte.
const hello = 6

// tinyInit is the smallest first process: it writes a byte to its standard output,
// the console, and then sleeps for ever.
func tinyInit() []byte {
	return tinyELF(0x400000, nil, []byte{
		0xb8, 1, 0, 0, 0, // mov eax, write
		0xbf, 1, 0, 0, 0, // mov edi, 1
		0x48, 0x8d, 0x35, 16, 0, 0, 0, // lea rsi, [rip+16]
		0xba, 1, 0, 0, 0, // mov edx, 1
		0x0f, 0x05, // syscall
		0xb8, 34, 0, 0, 0, // mov eax, pause
		0x0f, 0x05, // syscall
		0xeb, 0xf7, // jmp -9
		hello,
	})
}

// deadKernel is an image that a machine starts and that does nothing at all.
func deadKernel() []byte {
	note := binary.LittleEndian.AppendUint32(nil, 4)
	note = binary.LittleEndian.AppendUint32(note, 8)
	note = binary.LittleEndian.AppendUint32(note, 18) // XEN_ELFNOTE_PHYS32_ENTRY
	note = append(note, "Xen\x00"...)
	const base, headers = 1 << 20, 64 + 2*56
	note = binary.LittleEndian.AppendUint64(note, base+headers+24)
	return tinyELF(base, note, []byte{0xf4, 0xeb, 0xfd}) // hlt; jmp -3
}

// tinyELF makes a program of code, after notes, that is loaded at base.
func tinyELF(base uint64, notes, code []byte) []byte {
	progs := []elf.Prog64{{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Vaddr: base, Paddr: base, Align: 4096}}
	if notes != nil {
		progs = append(progs, elf.Prog64{Type: uint32(elf.PT_NOTE), Flags: uint32(elf.PF_R), Vaddr: base, Paddr: base, Align: 4})
	}
	at := 64 + 56*len(progs)
	size := uint64(at + len(notes) + len(code))
	progs[0].Filesz, progs[0].Memsz = size, size
	if notes != nil {
		p := &progs[1]
		p.Off, p.Filesz, p.Memsz = uint64(at), uint64(len(notes)), uint64(len(notes))
		p.Vaddr, p.Paddr = base+uint64(at), base+uint64(at)
	}
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	put(elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: base + uint64(at+len(notes)), Phoff: 64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(progs)),
	})
	put(progs)
	b.Write(notes)
	b.Write(code)
	return b.Bytes()
}

// initramfsOf makes a first file system with init as the program that our kernels'
// command lines name.
func initramfsOf(t testing.TB, dir, agentPath string, init []byte) string {
	t.Helper()
	var b bytes.Buffer
	err := initramfs.Write(&b, []initramfs.Entry{
		{Name: "dev", Mode: initramfs.ModeDir},
		{Name: "dev/console", Mode: initramfs.ModeChar, Major: 5, Minor: 1},
		{Name: filepath.Dir(agentPath)[1:], Mode: initramfs.ModeDir},
		{Name: agentPath[1:], Mode: initramfs.ModeProg, Data: init},
	})
	if err != nil {
		t.Fatal(err)
	}
	return writeTest(t, dir, "tiny.cpio", b.Bytes())
}

// kernelOf is a kernel whose image is this, as far as a driver looks.
func kernelOf(t testing.TB, image []byte) kernel.Kernel {
	t.Helper()
	k := kernel.Kernel{Dir: t.TempDir()}
	k.Manifest.Image = kernel.Part{Name: "vmlinux", Size: int64(len(image))}
	writeTest(t, k.Dir, "vmlinux", image)
	return k
}

func writeTest(t testing.TB, dir, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
