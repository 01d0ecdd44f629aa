// Command helper becomes runsc for tests whose own binary cannot: one with the race
// detector, or a dynamically linked one.
package main

import (
	"os"

	"github.com/bouvet-run/bouvet/vm/gvisor"
)

func main() {
	gvisor.Dispatch()
	os.Exit(2)
}
