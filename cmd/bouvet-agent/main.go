// Command bouvet-agent runs in a guest and does what the host asks; see package
// agent.
package main

import (
	"os"

	"github.com/bouvet-run/bouvet/agent"
)

// version is set by the linker.
var version = "devel"

func main() {
	os.Exit(agent.Main(agent.Program{Version: version}))
}
