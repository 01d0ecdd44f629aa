package proc

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// EndDescendants kills all processes that descend from this program, for one that
// adopts orphans and is about to end: nobody is left to end them after it. It
// returns when none lives, or after two seconds.
func EndDescendants() {
	for range maxKillRounds {
		alive := descendants(os.Getpid())
		if len(alive) == 0 {
			return
		}
		for _, pid := range alive {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		<-time.After(killPause)
	}
}

// descendants returns the living descendants of a process. A zombie's children
// have another parent already.
func descendants(of int) []int {
	family := map[int]bool{of: true}
	var alive []int
	all := relatives()
	for found := true; found; {
		found = false
		for _, r := range all {
			if !r.dead && family[r.parent] && !family[r.pid] {
				family[r.pid], found = true, true
				alive = append(alive, r.pid)
			}
		}
	}
	return alive
}
