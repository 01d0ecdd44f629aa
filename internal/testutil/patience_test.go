package testutil_test

import (
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
)

func TestPatience(t *testing.T) {
	for value, want := range map[string]time.Duration{"": 2, "3": 6, "0": 2, "-1": 2, "101": 2, "much": 2} {
		t.Setenv(testutil.PatienceEnv, value)
		if got := testutil.Patience(2); got != want {
			t.Errorf("%q: got %d, want %d", value, got, want)
		}
	}
}
