package testutil

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// An inventory maps what identifies a thing to a line that describes it. The
// identity of what the kernel numbers includes more than the number, which it
// will use again.
type inventory map[string]string

// add notes one thing. kind begins the line that a reader of the failure sees.
func (v inventory) add(kind, identity, description string) {
	v[kind+" "+identity] = kind + " " + description
}

// since returns the descriptions of what is in v and not in before, sorted.
func (v inventory) since(before inventory) []string {
	var leaks []string
	for identity, description := range v {
		if _, known := before[identity]; !known {
			leaks = append(leaks, description)
		}
	}
	slices.Sort(leaks)
	return leaks
}

func (l *ledger) take() inventory {
	v := inventory{}
	l.addProcesses(v)
	l.addMounts(v)
	l.addNamespaces(v)
	l.addCgroups(v)
	l.addFiles(v)
	addDescriptors(v)
	addGoroutines(v)
	return v
}

// mentions reports whether s names one of the marked paths or something below it.
func (l *ledger) mentions(s string) bool {
	return slices.ContainsFunc(l.marks, func(dir string) bool {
		for rest := s; ; {
			i := strings.Index(rest, dir)
			if i < 0 {
				return false
			}
			rest = rest[i+len(dir):]
			// /tmp/x does not name /tmp/x1.
			if rest == "" || strings.ContainsRune("/ ,:\x00'\"", rune(rest[0])) {
				return true
			}
		}
	})
}

// startRuntimeDescriptors makes the Go runtime open now what it opens once and
// keeps, its poller, so that it is not taken for a leak later.
func startRuntimeDescriptors() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	_ = r.Close()
	_ = w.Close()
}

// addDescriptors notes this process's open descriptors and what each refers to.
func addDescriptors(v inventory) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		// The descriptor that was open to read the directory is closed by now.
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil {
			continue
		}
		v.add("descriptor", e.Name()+" "+target, fmt.Sprintf("%s: %s", e.Name(), target))
	}
}
