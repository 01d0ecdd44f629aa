package testutil

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Scope says what a ledger watches besides the test process itself, whose child
// processes, descriptors and goroutines are always watched, as are processes and
// mounts that carry the test's temporary directory in their name. The zero value
// is useful.
type Scope struct {
	// Dirs are directories whose contents must be the same afterwards, and whose
	// path in a command line or in a mount marks that process or mount as the
	// test's. They need not exist.
	Dirs []string
	// Cgroups are parent cgroups, relative to the root of each hierarchy that is
	// mounted ("bouvet-test"); a pattern as of filepath.Match is allowed. What is
	// below them is watched. A parent is shared, and stays, so it is not.
	Cgroups []string
	// Host widens the watch to every mount and every named network namespace of
	// the host. Only for packages that run alone on a quiet machine: the tests of
	// another package would be taken for leaks.
	Host bool
	// Grace is how long what is on its way out may take; zero means 5 s.
	Grace time.Duration
}

const (
	defaultGrace = 5 * time.Second
	// markVariable marks descendants through their environment, which they keep
	// when their parent dies and they are adopted by init.
	markVariable = "BOUVET_TEST_LEDGER"
)

// Ledger takes an inventory now and another one when t ends, and fails t with a
// list of what exists only in the second. Call it first in a test: cleanups that
// are registered later run before it looks. The test must not be parallel, since
// the process has only one set of descriptors; Ledger makes t.Parallel panic.
func Ledger(t testing.TB, s Scope) {
	t.Helper()
	// First, so that it is removed after the ledger has looked. What it lies in
	// holds all temporary directories of the test.
	temp := filepath.Dir(t.TempDir())
	token := tokenFor(os.Getenv(markVariable))
	t.Setenv(markVariable, token)
	l := open(s, token, temp)
	t.Cleanup(func() {
		t.Helper()
		if leaks := l.close(); len(leaks) > 0 {
			t.Errorf("leaked:\n\t%s", strings.Join(leaks, "\n\t"))
		}
	})
}

// LedgerMain runs the tests of a package between two inventories and returns the
// exit status for os.Exit: that of the tests, or 1 if they passed and leaked.
func LedgerMain(m *testing.M, s Scope) int {
	token := tokenFor(os.Getenv(markVariable))
	if err := os.Setenv(markVariable, token); err != nil {
		fmt.Fprintln(os.Stderr, "cannot open the ledger:", err)
		return 1
	}
	l := open(s, token)
	code := m.Run()
	if leaks := l.close(); len(leaks) > 0 {
		fmt.Fprintf(os.Stderr, "FAIL: the tests of this package leaked:\n\t%s\n", strings.Join(leaks, "\n\t"))
		return max(code, 1)
	}
	return code
}

// tokenFor extends an outer ledger's token, so that a process carries the tokens
// of all the ledgers it was started under.
func tokenFor(outer string) string { return outer + "/" + rand.Text() }

type ledger struct {
	scope  Scope
	token  string   // in the environment of what was started under this ledger
	marks  []string // paths whose mention marks a process or a mount as the test's
	before inventory
}

func open(s Scope, token string, marks ...string) *ledger {
	if s.Grace == 0 {
		s.Grace = defaultGrace
	}
	startRuntimeDescriptors()
	l := &ledger{scope: s, token: token, marks: slices.Concat(marks, s.Dirs)}
	l.before = l.take()
	return l
}

// close returns what there is now and was not at open, as soon as that is
// nothing, or after the grace: processes, and what their end sets free, go when
// the kernel gets round to it.
func (l *ledger) close() []string {
	deadline := time.NewTimer(l.scope.Grace)
	defer deadline.Stop()
	pause := time.NewTicker(5 * time.Millisecond)
	defer pause.Stop()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		leaks := l.take().since(l.before)
		if len(leaks) == 0 {
			return nil
		}
		select {
		case <-deadline.C:
			return leaks
		case <-pause.C:
			pause.Reset(wait)
		}
	}
}
