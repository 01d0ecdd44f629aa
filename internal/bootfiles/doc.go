// Package bootfiles makes the first file system of guests with a kernel of their
// own: the agent and the kernel's modules, as an initramfs that machines share.
package bootfiles
