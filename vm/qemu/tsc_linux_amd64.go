package qemu

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// rdtsc reads this processor's time stamp counter.
func rdtsc() uint64

const (
	// tscInterval is how long the counter is compared with the clock: with an error
	// of half a microsecond at either end the result is good to 0.01 %.
	tscInterval = 10 * time.Millisecond
	// tscSamples is of how many readings of both the quickest counts.
	tscSamples = 16
)

// tscKHz is the frequency of the time stamp counter in kHz, which under TCG is the
// guest's too: a guest without a timer to measure it by must be told.
var tscKHz = sync.OnceValue(func() uint64 {
	begin, from := stamp()
	timer := time.NewTimer(tscInterval)
	<-timer.C
	end, to := stamp()
	return (to - from) * uint64(time.Second/time.Microsecond) / uint64(max(end-begin, 1))
})

// stamp reads the clock, in ns, and the counter at one instant.
func stamp() (clock int64, counter uint64) {
	best := ^uint64(0)
	for range tscSamples {
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
