// Package tsc measures the frequency of the processor's time stamp counter.
package tsc

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rdtsc reads this processor's time stamp counter.
func rdtsc() uint64

const (
	// interval is how long the counter is compared with the clock: with an error
	// of half a microsecond at either end the result is good to 0.01 %.
	interval = 10 * time.Millisecond
	// samples is of how many readings of both the quickest counts.
	samples = 16
)

// KHz is the frequency of the time stamp counter in kHz, which under TCG is the
// guest's too: a guest without a timer to measure it by must be told. The first call
// takes 10 ms.
var KHz = sync.OnceValue(func() uint64 {
	begin, from := stamp()
	timer := time.NewTimer(interval)
	<-timer.C
	end, to := stamp()
	return (to - from) * uint64(time.Second/time.Microsecond) / uint64(max(end-begin, 1))
})

// stamp reads the clock, in ns, and the counter at one instant.
func stamp() (clock int64, counter uint64) {
	best := ^uint64(0)
	for range samples {
		var ts unix.Timespec
		before := rdtsc()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
			return time.Now().UnixNano(), before
		}
		after := rdtsc()
		if after-before < best {
			best, clock, counter = after-before, ts.Nano(), before+(after-before)/2
		}
	}
	return clock, counter
}
