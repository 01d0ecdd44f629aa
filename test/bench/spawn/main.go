// Command spawn times what an agent cannot do without: the fork, exec and wait
// of a command, from inside the guest. It prints each duration in nanoseconds.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"time"
)

func main() {
	n, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	for range n {
		start := time.Now()
		cmd := exec.CommandContext(context.Background(), os.Args[2]) //nolint:gosec // the caller chose it.
		cmd.WaitDelay = time.Second
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(time.Since(start).Nanoseconds())
	}
}
