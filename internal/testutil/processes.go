package testutil

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A process as /proc shows it.
type process struct {
	pid, parent int
	state       string
	started     string // clock ticks after boot: tells it from a later one of the same pid
}

// addProcesses notes the living descendants of this process, and processes
// elsewhere that were started under this ledger: by the token in their
// environment, or a directory of the scope in their command line. A zombie child
// is noted too: it is a process that nobody waited for.
func (l *ledger) addProcesses(v inventory) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	self := os.Getpid()
	var all []process
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == self {
			continue
		}
		p, ok := readProcess(pid)
		if !ok {
			continue
		}
		all = append(all, p)
		children[p.parent] = append(children[p.parent], pid)
	}
	ours := map[int]bool{}
	for queue := children[self]; len(queue) > 0; queue = queue[1:] {
		ours[queue[0]] = true
		queue = append(queue, children[queue[0]]...)
	}
	for _, p := range all {
		command := read(p.pid, "cmdline")
		if !ours[p.pid] && !l.mentions(command) && !strings.Contains(read(p.pid, "environ"), l.token) {
			continue
		}
		command = strings.TrimSpace(strings.ReplaceAll(command, "\x00", " "))
		if p.state == "Z" {
			command = "(zombie, nobody waited for it) " + strings.TrimSpace(read(p.pid, "comm"))
		}
		v.add("process", fmt.Sprintf("%d %s", p.pid, p.started), fmt.Sprintf("%d, parent %d: %.300s", p.pid, p.parent, command))
	}
}

func readProcess(pid int) (process, bool) {
	stat := read(pid, "stat")
	// The name, in parentheses, may itself contain anything.
	i := strings.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	fields := strings.Fields(stat[i+1:]) // from field 3 of proc_pid_stat(5) on
	if len(fields) < 20 {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	if err != nil {
		return process{}, false
	}
	return process{pid: pid, parent: parent, state: fields[0], started: fields[19]}, true
}

// read returns one of a process's files in /proc, or nothing: it may be gone.
func read(pid int, name string) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + name)
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(b, "\x00"))
}
