package bouvet_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vsock"
)

// A command with streams, used as one of os/exec is.
func ExampleSandbox_Command() {
	var sandbox *bouvet.Sandbox // of a Manager
	cmd := sandbox.Command(context.Background(), "sort", "-n")
	cmd.Stdin = strings.NewReader("10\n9\n")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	var exit *bouvet.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		fmt.Println("sort ended with", exit.Code)
	}
}

// The agent of a Firecracker VM that somebody else started.
func ExampleConnect() {
	ctx := context.Background()
	client, err := bouvet.Connect(ctx, vsock.Hybrid{Path: "/tmp/bouvet/vm-abc/v.sock"}, nil)
	if err != nil {
		fmt.Println(bouvet.Kind(err).Name, err)
		return
	}
	defer func() { _ = client.Close() }()
	result, err := client.Exec(ctx, "uname -a", nil)
	if err == nil {
		fmt.Print(result.Stdout)
	}
}
