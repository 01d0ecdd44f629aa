package cli

import (
	"fmt"
	"strconv"
	"time"
)

// A timeLimit is a flag's value like 30s or 1m30s; a number without a unit counts
// seconds, as it does for timeout(1).
type timeLimit struct{ d time.Duration }

// Set implements pflag.Value.
func (t *timeLimit) Set(s string) error {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%s is not a time; write it like 30s or 5m", quoted(s))
	}
	t.d = d
	return nil
}

// Type implements pflag.Value.
func (*timeLimit) Type() string { return "TIME" }

// String implements pflag.Value.
func (t *timeLimit) String() string {
	if t.d == 0 {
		return ""
	}
	return t.d.String()
}
