// Command bouvet runs code that nobody trusts in a sandbox of its own.
package main

import (
	"os"

	"github.com/bouvet-run/bouvet/internal/cli"
	"github.com/bouvet-run/bouvet/local"
)

func main() {
	local.Dispatch() // first: this program is its own helper
	os.Exit(cli.Main(os.Args[1:]))
}
