package bouvet

// State is what a sandbox is doing (seed 004).
type State int

// The states of a sandbox. It begins as Creating, alternates between Ready and
// Executing, and ends as Destroyed. Executing means that at least one command
// runs; more may be started.
const (
	Creating State = iota
	Ready
	Executing
	// Paused means that the machine stands still until Resume.
	Paused
	Destroyed
)

var stateNames = [...]string{"creating", "ready", "executing", "paused", "destroyed"}

// String returns the state's name in lower case.
func (s State) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "unknown"
	}
	return stateNames[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
