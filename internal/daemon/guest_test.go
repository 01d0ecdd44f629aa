package daemon

import "testing"

// What a guest says of itself may be anything.
func TestWhatAGuestSaysOfItself(t *testing.T) {
	for text, want := range map[string]int64{
		"cpu  1 2 3 100 100 4 5 6 7 8\ncpu0 9": 21,
		"cpu  1 2 3 100\n":                     6,
		"":                                     0,
		"cpu":                                  0,
		"cpu  -1 99999999999999999999 x 0 0 2": 2,
		"intr 1 2 3 4 5":                       0,
	} {
		if got := busyTicks([]byte(text)); got != want {
			t.Errorf("%.40q: %d ticks, not %d", text, got, want)
		}
	}
	got := kibibytes([]byte("MemTotal:  2 kB\nMemFree: -1 kB\nx\nCached: 99999999999999 kB\nSwap: 1 MB\n"))
	if len(got) != 1 || got["MemTotal"] != 2048 {
		t.Errorf("memory %v", got)
	}
}

func TestHostMemory(t *testing.T) {
	if n, err := memTotal("MemFree: 1 kB\nMemTotal:       2048 kB\n"); err != nil || n != 2<<20 {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := memTotal("nothing"); err == nil {
		t.Error("no error")
	}
	if n, err := hostMemory(); err != nil || n < 64 {
		t.Errorf("this host has %d MiB, %v", n, err)
	}
}
