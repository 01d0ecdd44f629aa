package daemon

import (
	"strings"
	"testing"
)

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

// The token of a page is a client's: it is refused, or it is one that we could have made.
func FuzzPageToken(f *testing.F) {
	f.Add("")
	f.Add("MS9pMQ")
	f.Add((place{1 << 60, "i2"}).token())
	f.Fuzz(func(t *testing.T, token string) {
		p, err := parseToken(token)
		if err != nil || p == nil {
			return
		}
		again, err := parseToken(p.token())
		if err != nil || *again != *p || len(token) > maxToken {
			t.Errorf("%q is %+v, and then %+v, %v", token, p, again, err)
		}
	})
}

// What a guest says is read without harm.
func FuzzGuestAccount(f *testing.F) {
	f.Add("cpu  1 2 3 4 5 6 7 8 9 10\n")
	f.Add("MemTotal: 1 kB\nMemAvailable: 2 kB\n")
	f.Fuzz(func(t *testing.T, text string) {
		if n := busyTicks([]byte(text)); n < 0 {
			t.Errorf("%d ticks", n)
		}
		for k, n := range kibibytes([]byte(text)) {
			if n < 0 || strings.Contains(k, "\n") {
				t.Errorf("%q is %d", k, n)
			}
		}
	})
}
