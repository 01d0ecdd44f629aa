package testutil

import (
	"runtime"
	"strings"
)

// addGoroutines notes the goroutines of this process by their number, which is
// never used twice, except those that the runtime, the testing package and
// os/signal start and keep.
func addGoroutines(v inventory) {
	for stack := range strings.SplitSeq(stacks(), "\n\n") {
		header, frames, found := strings.Cut(stack, "\n")
		number, state, ok := strings.Cut(strings.TrimPrefix(header, "goroutine "), " ")
		if !found || !ok || keptByLibrary(frames) {
			continue
		}
		v.add("goroutine", number, number+" "+strings.TrimSuffix(state, ":")+" "+where(frames))
	}
}

func stacks() string {
	for size := 1 << 16; ; size *= 2 {
		buf := make([]byte, size)
		if n := runtime.Stack(buf, true); n < size {
			return string(buf[:n])
		}
	}
}

func keptByLibrary(frames string) bool {
	top, _, _ := strings.Cut(frames, "\n")
	if strings.HasPrefix(top, "os/signal.") || strings.HasPrefix(top, "runtime.ensureSigM") {
		return true
	}
	_, creator, found := strings.Cut(frames, "created by ")
	if !found {
		return true // the main goroutine
	}
	for _, prefix := range []string{"runtime.", "testing.", "os/signal."} {
		if strings.HasPrefix(creator, prefix) {
			return true
		}
	}
	return false
}

// where names the innermost function that is not the runtime's, and who started
// the goroutine.
func where(frames string) string {
	at, creator := "", ""
	for line := range strings.Lines(frames) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "/") && creator != "": // "/path/file.go:12 +0x34"
			file, _, _ := strings.Cut(line, " ")
			return "in " + at + ", " + creator + " at " + file
		case strings.HasPrefix(line, "/"):
		case strings.HasPrefix(line, "created by "):
			creator = line
		case at == "" || isRuntime(at):
			at = line
			if i := strings.LastIndexByte(line, '('); i > 0 {
				at = line[:i]
			}
		}
	}
	return "in " + at
}

func isRuntime(call string) bool {
	return strings.HasPrefix(call, "runtime.") || strings.HasPrefix(call, "internal/") ||
		strings.HasPrefix(call, "sync.") || strings.HasPrefix(call, "syscall.")
}
