// Command stubagent stands in for the guest's agent in the driver's tests. On every
// stream it answers CONNECT, then runs each line with the shell, or answers ping
// itself, and ends the stream after one line.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/vsock"
)

func main() {
	conn, err := net.FileConn(os.NewFile(3, "channel"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "stubagent:", err)
		os.Exit(1)
	}
	fmt.Println("stubagent: up")
	l := vsock.NewMuxListener(conn.(*net.UnixConn))
	for {
		c, err := l.Accept()
		if err != nil {
			// A file makes it as stubborn as hostile code that took its place.
			_, stubborn := os.Stat("/stubborn")
			if slices.Contains(os.Args, "--host-bound") && stubborn != nil {
				os.Exit(0)
			}
			for {
				time.Sleep(time.Hour) // select {} would be a deadlock
			}
		}
		go serve(c)
	}
}

func serve(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	for _, want := range []string{"CONNECT ", ""} {
		line, err := r.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, want) {
			return
		}
		line = strings.TrimSpace(line)
		switch {
		case want != "":
			fmt.Fprintf(c, "OK %s\n", strings.TrimPrefix(line, want))
		case line == "ping":
			io.WriteString(c, "pong\n")
		default:
			out, err := exec.Command("/bin/sh", "-c", line).CombinedOutput()
			c.Write(out)
			if err != nil {
				fmt.Fprintln(c, err)
			}
		}
	}
}
