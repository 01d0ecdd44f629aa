package life

import (
	"hash/fnv"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

const (
	// Each machine of root's has a user of its own, of these; see User.
	uidBase, uidCount = 0x70000000, 0x0fff0000
	nobody            = 65534
)

// User is the number of the user and group that the virtual machine monitor of
// machine id runs as, nobody's on a usual host; where this user namespace is too
// small for that, it is the user nobody.
func User(id string) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, id)
	uid := uidBase + h.Sum32()%uidCount
	if !mapped("/proc/self/uid_map", uid) || !mapped("/proc/self/gid_map", uid) {
		return nobody
	}
	return uid
}

// mapped reports whether a map of user_namespaces(7) has id.
func mapped(path string, id uint32) bool {
	data, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue
		}
		first, err1 := strconv.ParseUint(fields[0], 10, 32)
		count, err2 := strconv.ParseUint(fields[2], 10, 33)
		if err1 == nil && err2 == nil && uint64(id) >= first && uint64(id) < first+count {
			return true
		}
	}
	return false
}

// parent takes what is to run on the thread that is the parent of machines. The
// kernel takes the end of that thread, not of the process, for the death of their
// owner; so it lives as long as the process.
var parent = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// Ready makes what Start keeps for the process's whole life.
func Ready() { parent() }

// Start starts cmd so that a parent-death signal it has asked for comes when this
// process ends, and not before.
func Start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	parent() <- func() { started <- cmd.Start() }
	return <-started
}
