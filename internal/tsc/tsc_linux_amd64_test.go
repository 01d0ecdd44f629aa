package tsc_test

import (
	"testing"

	"github.com/bouvet-run/bouvet/internal/tsc"
)

// No processor that this runs on is slower than 100 MHz, or faster than 10 GHz.
func TestKHz(t *testing.T) {
	if got := tsc.KHz(); got < 100_000 || got > 10_000_000 || got != tsc.KHz() {
		t.Errorf("got %d kHz, then %d", got, tsc.KHz())
	}
}
