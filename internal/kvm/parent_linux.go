package kvm

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent ends the process when this one dies.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL}
}
