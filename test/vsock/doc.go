// Package vsock tests the agent's AF_VSOCK path against a real guest kernel: a QEMU
// machine whose vsock device rust-vmm's vhost-device-vsock serves, as a hybrid socket
// like Firecracker's.
package vsock
