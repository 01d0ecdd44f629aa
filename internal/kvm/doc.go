// Package kvm finds out whether this machine's KVM can run a guest, by running a
// tiny one: a /dev/kvm that can be opened proves nothing where virtualization is
// itself virtual. The guest runs in a process of its own, which can be killed when
// the kernel does not come back from it.
package kvm
