package rundir

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
)

// A Process identifies a process beyond the reuse of its number.
type Process struct {
	PID int `json:"pid"`
	// Start is the process's start time in clock ticks since the boot (proc(5),
	// /proc/PID/stat field 22).
	Start uint64 `json:"start"`
	// Boot is the kernel's boot ID.
	Boot string `json:"boot"`
}

// Identify returns the identity of the living process pid.
func Identify(pid int) (Process, error) {
	boot, err := bootID()
	if err != nil {
		return Process{}, err
	}
	start, _, err := stat(pid)
	if err != nil {
		return Process{}, err
	}
	return Process{PID: pid, Start: start, Boot: boot}, nil
}

// Alive reports whether exactly this process still runs; a zombie does not.
func (p Process) Alive() bool {
	if p.PID <= 0 {
		return false
	}
	boot, err := bootID()
	if err != nil || boot != p.Boot {
		return false
	}
	start, state, err := stat(p.PID)
	return err == nil && start == p.Start && state != 'Z' && state != 'X'
}

var bootID = sync.OnceValues(func() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
})

func self() (Process, error) { return Identify(os.Getpid()) }

func stat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("cannot identify process: %w", err)
	}
	// The name in parentheses may hold anything, parentheses included.
	i := bytes.LastIndexByte(b, ')')
	fields := strings.Fields(string(b[i+1:]))
	const stateField, startField = 0, 22 - 3 // fields 3 and 22, counted from the third
	if i < 0 || len(fields) <= startField {
		return 0, 0, errors.New("cannot identify process: malformed stat")
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("cannot identify process: %w", err)
	}
	return start, fields[stateField][0], nil
}
