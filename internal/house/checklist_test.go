package house_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// items are what a test must name: the checklist of the two protocols, A1 to L23,
// with the rules that follow from earlier versions of the exec protocol (2.9), the
// answers (2.10) and the defects (2.11) of its reference; and the threats that
// concern the core.
func items() []string {
	var all []string
	series := func(format string, from, to int) {
		for n := from; n <= to; n++ {
			all = append(all, fmt.Sprintf(format, n))
		}
	}
	for _, s := range []struct {
		letter string
		n      int
	}{{"A", 11}, {"B", 11}, {"C", 11}, {"D", 12}, {"E", 7}, {"F", 4}, {"G", 4}, {"H", 1}, {"I", 1}, {"J", 9}, {"K", 10}, {"L", 23}} {
		series(s.letter+"%d", 1, s.n)
	}
	series("2.9 rule %d", 1, 5)
	all = append(all, "2.10")
	series("2.11 no. %d", 1, 8)
	all = append(all, "T05")
	series("T%02d", 9, 24)
	return append(all, "T39")
}

// notYet are the items that nothing here can meet.
var notYet = map[string]string{
	"L21": "the body of /health is the HTTP API's, which this version does not have",
}

// partly says what of a threat's entry in the catalogue does not apply to the
// core; the rest does, and is what the tests that name it cover.
var partly = map[string]string{
	"T09": "no 256 KiB a stream: the mux lets a guest send 1 MiB ahead, which bounds it as well",
	"T14": "no process in D state: gVisor has none; Destroy of a sentry that is stopped stands for it",
	"T16": "no 10^5 zombies and no wrap of numbers: thousands, and a number that is set to come again",
	"T21": "no paging of a listing: it is capped by both sides",
	"T22": "no archive is copied out: Download writes to the caller's writer; names are checked, imports flattened",
	"T24": "no nonce on a kernel's command line: the channel is a socketpair that nobody else has, its session has a nonce",
	"T39": "no snapshots beside the storm",
}

// SECURITY.md names the threats behind each promise. A test, or a section of the
// suite that every driver passes, names them as well.
func TestPromisesAreTested(t *testing.T) {
	var tests strings.Builder
	files(t, ".go", func(path string, content []byte) {
		if strings.HasSuffix(path, "checklist_test.go") || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "vm/vmtest/suite") {
			return
		}
		tests.Write(content)
		tests.WriteByte('\n')
	})
	promised := 0
	for _, m := range regexp.MustCompile(`\bT(\d\d)(?:-T(\d\d))?\b`).FindAllStringSubmatch(document(t, "docs/SECURITY.md"), -1) {
		from, _ := strconv.Atoi(m[1])
		to, err := strconv.Atoi(m[2])
		if err != nil {
			to = from
		}
		for n := from; n <= to; n++ {
			promised++
			if !regexp.MustCompile(fmt.Sprintf(`\bT%02d\b`, n)).MatchString(tests.String()) {
				t.Errorf("SECURITY.md says that tests name T%02d, and none does", n)
			}
		}
	}
	if promised < 15 {
		t.Errorf("found %d threats in SECURITY.md only: is it read?", promised)
	}
}

// Coverage by name does not rot: whoever removes the last test of an item, or
// adds an item, hears of it here. That a test does what its name says is for its
// reader to judge.
func TestEveryItemIsNamedByATest(t *testing.T) {
	var tests strings.Builder
	files(t, "_test.go", func(path string, content []byte) {
		if !strings.HasSuffix(path, "checklist_test.go") {
			tests.Write(content)
			tests.WriteByte('\n')
		}
	})
	named := func(id string) bool {
		return regexp.MustCompile(`\b` + regexp.QuoteMeta(id) + `\b`).MatchString(tests.String())
	}
	known := map[string]bool{}
	for _, id := range items() {
		known[id] = true
		switch why := notYet[id]; {
		case why == "" && !named(id):
			t.Errorf("no test names %s: name it in the test that covers it, or write that", id)
		case why != "" && named(id):
			t.Errorf("%s is named by a test, and notYet says that it cannot be: %s", id, why)
		}
	}
	for _, exceptions := range []map[string]string{notYet, partly} {
		for id, why := range exceptions {
			if !known[id] || why == "" {
				t.Errorf("%s is no item, or has no reason", id)
			}
		}
	}
}
