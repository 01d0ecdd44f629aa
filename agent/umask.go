package agent

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// umask tells the process's file mode creation mask. umask(2) can only tell it by
// changing it, for all threads.
var umask = sync.OnceValue(func() uint32 {
	const usual = 0o022
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return usual
	}
	_, rest, ok := strings.Cut(string(status), "\nUmask:\t")
	if !ok {
		return usual // gVisor does not tell
	}
	value, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(value, 8, 32)
	if err != nil {
		return usual
	}
	return uint32(mask)
})
