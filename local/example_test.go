package local_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/local"
)

func Example() {
	local.Dispatch() // the first call of main

	ctx := context.Background()
	manager, err := local.Open(ctx, local.Options{})
	if err != nil {
		slog.Error("cannot open", slog.Any("error", err))
		return
	}
	defer func() { _ = manager.Close(ctx) }()
	sandbox, err := manager.CreateSandbox(ctx, bouvet.Config{})
	if err != nil {
		slog.Error("cannot create sandbox", slog.Any("error", err))
		return
	}
	result, err := sandbox.ExecuteCode(ctx, "python", "print(6 * 7)")
	if err != nil {
		slog.Error("cannot run", slog.Any("error", err))
		return
	}
	fmt.Print(result.Stdout)
}
