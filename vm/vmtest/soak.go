package vmtest

import (
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

// soakEnv says how many machines a soak starts in a row; make soak sets it.
const soakEnv = "BOUVET_SOAK"

// SoakCount is the number in $BOUVET_SOAK, or few without it.
func SoakCount(t testing.TB, few int) int {
	t.Helper()
	text := os.Getenv(soakEnv)
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, want a number", soakEnv, text)
	}
	return n
}

// tenAtOnce is how many machines come and go together.
const tenAtOnce = 10

// TestSoak has machines come and go, one after another and then ten at once: as many as
// half of $BOUVET_SOAK each way, or few, and always one ten. Each of them answers a
// ping, after each nothing is left, and after all nothing in this process or on the
// host (threat T35).
func TestSoak(t *testing.T, s Subject, few int) {
	n := max(1, SoakCount(t, 2*few)/2)
	for _, way := range []struct {
		name string
		run  func(e *env) []time.Duration
	}{
		{"one after another", func(e *env) []time.Duration { return e.inRow(n) }},
		{"ten at once", func(e *env) []time.Duration { return e.together(max(1, n/tenAtOnce)) }},
	} {
		t.Run(way.name, func(t *testing.T) {
			testutil.Ledger(t, s.Scope)
			all := way.run(&env{T: t, s: s, d: s.New(t)})
			if t.Failed() {
				return
			}
			slices.Sort(all)
			t.Logf("%d machines from their creation to the agent's answer: fastest %v, median %v, slowest %v", len(all), all[0], all[len(all)/2], all[len(all)-1])
		})
	}
}

// inRow has n machines come and go one after another.
func (e *env) inRow(n int) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		var err error
		if all[i], err = Cycle(e.d, e.config()); err != nil {
			e.Fatalf("machine %d of %d: %v", i+1, n, err)
		}
		e.nothingLeft()
	}
	return all
}

// together has ten machines at once come and go, round after round.
func (e *env) together(rounds int) []time.Duration {
	all := make([]time.Duration, rounds*tenAtOnce)
	for round := range rounds {
		var ten sync.WaitGroup
		for i := round * tenAtOnce; i < (round+1)*tenAtOnce; i++ {
			ten.Go(func() {
				var err error
				if all[i], err = Cycle(e.d, e.config()); err != nil {
					e.Errorf("round %d of %d: %v", round+1, rounds, err)
				}
			})
		}
		ten.Wait()
		e.nothingLeft()
		if e.Failed() {
			break
		}
	}
	return all
}
