package image

// Progress is told how a long operation gets on, from one goroutine at a time.
// It must not block. A nil Progress is allowed everywhere.
type Progress func(Event)

// An Event is one step of a long operation.
type Event struct {
	// Stage says what is being done, for people: "downloading packages".
	Stage string
	// Done is how much of the stage is done and Total how much there is, in Unit;
	// Total is 0 where it is not known.
	Done, Total int64
	// Unit is "bytes" or "entries", or empty for a stage that has no measure.
	Unit string
}

func (p Progress) stage(name string) {
	if p != nil {
		p(Event{Stage: name})
	}
}
