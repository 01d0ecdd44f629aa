package kvm

import (
	"fmt"
	"time"
)

// Device is the device that is tried.
const Device = "/dev/kvm"

// Time bounds a Check: a guest that works ends in some milliseconds, so nearly all
// of it is for a program that starts on a busy machine.
const Time = 3 * time.Second

// An Error says why KVM cannot be used.
type Error struct {
	// Reason is what was found.
	Reason string
	// Remedy is what a user may do about it; empty if there is nothing.
	Remedy string
	// TimedOut means that no answer came in time, which may be a busy machine's
	// fault: it is worth asking again some day.
	TimedOut bool
}

// Error implements error.
func (e *Error) Error() string { return "cannot use KVM: " + e.Reason }

// broken is a device that is there and does not work, which is for others to repair.
func broken(format string, args ...any) *Error {
	return &Error{
		Reason: Device + " can be opened, but " + fmt.Sprintf(format, args...),
		Remedy: "look at the kernel's log (dmesg); in a virtual machine, its host has to allow nested virtualization",
	}
}
