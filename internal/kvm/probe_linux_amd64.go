package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"structs"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of ioctl(2), from linux/kvm.h (Documentation/virt/kvm/api.rst). Those with
// a structure have its size in bits 16 to 29.
const (
	getAPIVersion       = 0xae00     // KVM_GET_API_VERSION, on the device
	createVM            = 0xae01     // KVM_CREATE_VM, on the device
	getVCPUMmapSize     = 0xae04     // KVM_GET_VCPU_MMAP_SIZE, on the device
	createVCPU          = 0xae41     // KVM_CREATE_VCPU, on a VM
	setUserMemoryRegion = 0x4020ae46 // KVM_SET_USER_MEMORY_REGION, on a VM
	setTSSAddr          = 0xae47     // KVM_SET_TSS_ADDR, on a VM
	runVCPU             = 0xae80     // KVM_RUN, on a virtual processor
	setRegs             = 0x4090ae82 // KVM_SET_REGS, on a virtual processor
	getSregs            = 0x8138ae83 // KVM_GET_SREGS, on a virtual processor
	setSregs            = 0x4138ae84 // KVM_SET_SREGS, on a virtual processor
)

const (
	apiVersion = 12
	// tssBase is where an Intel processor without unrestricted guests keeps three
	// pages of KVM's own, anywhere but in the guest's memory.
	tssBase = 0xfffbd000
	// Offsets in struct kvm_run. The data of an I/O exit is where runIODataOffset
	// says, counted from the beginning of the structure; runDetail is the hardware's
	// reason or KVM's suberror.
	runExitReason   = 8
	runDetail       = 32
	runIODirection  = 32
	runIOPort       = 34
	runIODataOffset = 40
	runLeast        = 48
	// Values of exit_reason.
	exitIO       = 2
	exitHalt     = 5
	exitShutdown = 8
	exitFail     = 9
	exitInternal = 17
	ioOut        = 1
	// maxRuns bounds how often the guest may come back before it has halted.
	maxRuns = 1000
)

const (
	port   = 0xf4
	answer = 42
)

// program is the guest's, in 64-bit mode: it writes a byte to a port and halts. It
// computes the byte in floating point, which KVM's own emulator of instructions
// cannot: a KVM without hardware that emulates what it cannot run fails here, as it
// would fail, later or never, in the kernel of a guest.
var program = []byte{
	0xb8, answer / 2, 0, 0, 0, // mov eax, answer / 2
	0xf2, 0x0f, 0x2a, 0xc0, //    cvtsi2sd xmm0, eax
	0xf2, 0x0f, 0x58, 0xc0, //    addsd xmm0, xmm0
	0xf2, 0x0f, 0x2c, 0xc0, //    cvttsd2si eax, xmm0
	0xe6, port, //                out port, al
	0xf4, //                      hlt
}

// The guest's memory: three levels of page tables, which map it to itself by one
// large page, and the program.
const (
	level4, level3, level2 = 0x1000, 0x2000, 0x3000
	codeBase               = 0x4000
	memorySize             = 0x5000
	// Bits of an entry of a page table.
	present, writable, large = 1, 2, 0x80
)

// Bits of control registers, from the processors' manuals: protected mode,
// coprocessor, its errors, write protection, paging; physical address extension,
// SSE; long mode enabled and active.
const (
	cr0  = 1<<0 | 1<<1 | 1<<4 | 1<<5 | 1<<16 | 1<<31
	cr4  = 1<<5 | 1<<9
	efer = 1<<8 | 1<<10
)

// memoryRegion is struct kvm_userspace_memory_region.
type memoryRegion struct {
	_                       structs.HostLayout
	slot, flags             uint32
	guestAddr, size, holder uint64
}

// registers is struct kvm_regs: those that the guest does not begin with 0, among
// the others.
type registers struct {
	_           structs.HostLayout
	_           [16]uint64
	rip, rflags uint64
}

// segment is struct kvm_segment.
type segment struct {
	_                                  structs.HostLayout
	base                               uint64
	limit                              uint32
	selector                           uint16
	kind, present, dpl, db, s, l, g, _ uint8
	unusable, _                        uint8
}

// systemRegisters is struct kvm_sregs.
type systemRegisters struct {
	_                               structs.HostLayout
	cs, ds, es, fs, gs, ss, tr, ldt segment
	gdt, idt                        [2]uint64
	cr0, cr2, cr3, cr4, cr8, efer   uint64
	apicBase                        uint64
	interrupts                      [4]uint64
}

// probe runs the guest. Whatever it makes goes with the process.
func probe() *Error {
	runtime.LockOSThread() // a virtual processor belongs to one thread
	defer runtime.UnlockOSThread()
	dev, err := unix.Open(Device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotOpen(err)
	}
	defer func() { _ = unix.Close(dev) }()
	version, err := ioctl(dev, getAPIVersion, 0)
	if err != nil {
		return broken("it does not tell its version: %v", err)
	}
	if version != apiVersion {
		return broken("its interface is version %d, not %d", version, apiVersion)
	}
	machine, err := ioctl(dev, createVM, 0)
	if errors.Is(err, unix.EBUSY) {
		return &Error{Reason: "another hypervisor has the processor's virtualization", Remedy: "end the other hypervisor (VirtualBox, VMware) and unload its modules"}
	}
	if err != nil {
		return broken("it makes no virtual machine: %v", err)
	}
	defer func() { _ = unix.Close(machine) }()
	memory, err := unix.Mmap(-1, 0, memorySize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return broken("there is no memory for a guest: %v", err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	fill(memory)
	holder := uintptr(unsafe.Pointer(&memory[0])) //nolint:gosec // mapped until the guest has ended
	if err := exchange(machine, setUserMemoryRegion, &memoryRegion{size: memorySize, holder: uint64(holder)}); err != nil {
		return broken("it takes no memory: %v", err)
	}
	if _, err := ioctl(machine, setTSSAddr, tssBase); err != nil {
		return broken("it takes no address for its own pages: %v", err)
	}
	size, err := ioctl(dev, getVCPUMmapSize, 0)
	if err != nil || size < runLeast {
		return broken("it tells no size of a virtual processor: %d, %v", size, err)
	}
	cpu, err := ioctl(machine, createVCPU, 0)
	if err != nil {
		return broken("it makes no virtual processor: %v", err)
	}
	defer func() { _ = unix.Close(cpu) }()
	run, err := unix.Mmap(cpu, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return broken("it does not show its virtual processor: %v", err)
	}
	defer func() { _ = unix.Munmap(run) }()
	if err := enterLongMode(cpu); err != nil {
		return broken("it takes no registers: %v", err)
	}
	return execute(cpu, run)
}

// fill writes the page tables and the program.
func fill(memory []byte) {
	binary.LittleEndian.PutUint64(memory[level4:], level3|present|writable)
	binary.LittleEndian.PutUint64(memory[level3:], level2|present|writable)
	binary.LittleEndian.PutUint64(memory[level2:], present|writable|large)
	copy(memory[codeBase:], program)
}

// enterLongMode has the processor begin with the program, in 64-bit mode.
func enterLongMode(cpu int) error {
	var s systemRegisters
	if err := exchange(cpu, getSregs, &s); err != nil {
		return err
	}
	s.cr0, s.cr3, s.cr4, s.efer = cr0, level4, cr4, efer
	const code, data = 11, 3 // types of segments: execute and read, read and write
	s.cs = segment{limit: 1<<32 - 1, selector: 1 << 3, kind: code, present: 1, s: 1, l: 1, g: 1}
	flat := segment{limit: 1<<32 - 1, selector: 2 << 3, kind: data, present: 1, db: 1, s: 1, g: 1}
	s.ds, s.es, s.fs, s.gs, s.ss = flat, flat, flat, flat, flat
	if err := exchange(cpu, setSregs, &s); err != nil {
		return err
	}
	return exchange(cpu, setRegs, &registers{rip: codeBase, rflags: 2})
}

// execute lets the guest run to its end.
func execute(cpu int, run []byte) *Error {
	said := false
	for range maxRuns {
		if _, err := ioctl(cpu, runVCPU, 0); err != nil {
			return broken("a guest does not run: %v", err)
		}
		switch reason := binary.NativeEndian.Uint32(run[runExitReason:]); {
		case reason == exitIO && run[runIODirection] == ioOut && binary.NativeEndian.Uint16(run[runIOPort:]) == port:
			offset := binary.NativeEndian.Uint64(run[runIODataOffset:])
			said = offset < uint64(len(run)) && run[offset] == answer
		case reason == exitHalt && said:
			return nil
		case reason == exitHalt:
			return broken("a guest computes wrongly")
		case reason == exitInternal:
			return broken("it emulates what the processor should run, and fails at it (suberror %d)", binary.NativeEndian.Uint32(run[runDetail:]))
		case reason == exitFail, reason == exitShutdown:
			return broken("the processor does not run a guest (exit reason %d, %#x)", reason, binary.NativeEndian.Uint64(run[runDetail:]))
		default:
			return broken("a guest ends for an unexpected reason, %d", reason)
		}
	}
	return broken("a guest does not end")
}

// ioctl is ioctl(2), again when a signal came between: the Go runtime sends some.
func ioctl(fd int, request, arg uintptr) (int, error) {
	for {
		n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// exchange is ioctl with a structure, which the kernel reads or writes.
func exchange[T memoryRegion | registers | systemRegisters](fd int, request uintptr, v *T) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(v))) //nolint:gosec // its size is in request
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
		default:
			return errno
		}
	}
}

func cannotOpen(err error) *Error {
	const module = "switch virtualization on in the firmware (in a virtual machine: have its host switch nested virtualization on), then modprobe kvm_intel or kvm_amd"
	switch {
	case errors.Is(err, unix.ENOENT):
		return &Error{Reason: "there is no " + Device, Remedy: module}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &Error{
			Reason: fmt.Sprintf("user %d may not open %s: %v", os.Geteuid(), Device, err),
			Remedy: "run bouvet as root, or as root: usermod -aG kvm USER, and log in again",
		}
	default:
		return &Error{Reason: fmt.Sprintf("cannot open %s: %v", Device, err), Remedy: module}
	}
}
