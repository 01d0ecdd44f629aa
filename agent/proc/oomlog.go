package proc

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// An oomLog tells which processes the kernel has ended because memory ran out: it
// writes that, with their numbers, to its log before it ends them. The log is read when
// there is a reason to ask. The methods of a nil log know of none.
type oomLog struct {
	fd    int // each read is one record; never blocks
	kills []oomKill
}

type oomKill struct {
	pid int
	at  time.Duration // since the machine's start, by its clock
}

const (
	kernelLog = "/dev/kmsg"
	// maxRecord is how long a record can be, in bytes (the kernel's
	// PRINTK_MESSAGE_MAX), and maxRecords how many are read at a time: the guest's
	// programs can write there, too.
	maxRecord  = 2048
	maxRecords = 4096
	// maxKills is how many kills are remembered.
	maxKills = 64
	// clockSlack is how far the log's clock may be behind the one of processes' starts.
	clockSlack = 50 * time.Millisecond
	// shellKilled is the exit code of a shell whose last command SIGKILL ended.
	shellKilled = 128 + int(unix.SIGKILL)
)

// newOOMLog returns nil where there is no such log, as under gVisor, or no right to it.
func newOOMLog() *oomLog {
	fd, err := unix.Open(kernelLog, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return &oomLog{fd: fd}
}

func (o *oomLog) close() {
	if o != nil {
		_ = unix.Close(o.fd)
	}
}

// killed reports whether the kernel ended the process with that number and end. Where a
// shell tells that SIGKILL ended its command, any kill since the shell's start counts.
func (o *oomLog) killed(pid int, since time.Duration, s *Status) bool {
	if o == nil || s.Signal != int(unix.SIGKILL) && s.ExitCode != shellKilled {
		return false
	}
	o.read()
	return slices.ContainsFunc(o.kills, func(k oomKill) bool {
		return k.at >= since-clockSlack && (k.pid == pid || s.ExitCode == shellKilled)
	})
}

// read takes in what is new.
func (o *oomLog) read() {
	record := make([]byte, maxRecord)
	for range maxRecords {
		n, err := unix.Read(o.fd, record)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR): // some were overwritten; the next is there
			continue
		case err != nil || n == 0:
			return
		}
		k, ok := parseOOMKill(string(record[:n]))
		if !ok {
			continue
		}
		if len(o.kills) == maxKills {
			o.kills = slices.Delete(o.kills, 0, 1)
		}
		o.kills = append(o.kills, k)
	}
}

// parseOOMKill reads a record of the log (Documentation/ABI/testing/dev-kmsg): what is
// told before a kill, if not too often, or what is told after it. What programs write
// there has another facility than the kernel's, which is 0.
func parseOOMKill(record string) (oomKill, bool) {
	const facilities = 8
	head, text, _ := strings.Cut(record, ";")
	text, _, _ = strings.Cut(text, "\n")
	fields := strings.Split(head, ",")
	if len(fields) < 3 {
		return oomKill{}, false
	}
	if level, err := strconv.ParseUint(fields[0], 10, 32); err != nil || level >= facilities {
		return oomKill{}, false
	}
	at, err := strconv.ParseUint(fields[2], 10, 53)
	if err != nil {
		return oomKill{}, false
	}
	const before, after = ",pid=", ": Killed process "
	var number string
	switch {
	case strings.HasPrefix(text, "oom-kill:"):
		number = text[strings.LastIndex(text, before)+1:]
		number = strings.TrimPrefix(number, before[1:])
	case strings.HasPrefix(text, "Out of memory"), strings.HasPrefix(text, "Memory cgroup out of memory"):
		_, number, _ = strings.Cut(text, after)
	}
	if i := strings.IndexFunc(number, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		number = number[:i]
	}
	pid, err := strconv.ParseUint(number, 10, 31)
	return oomKill{int(pid), time.Duration(at) * time.Microsecond}, err == nil
}

// uptime is how long the machine has run, by the log's clock.
func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
