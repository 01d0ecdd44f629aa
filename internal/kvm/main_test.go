package kvm_test

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{
		"works":   func() int { return kvm.Report(nil) },
		"refuses": func() int { return kvm.Report(&kvm.Error{Reason: "it is\nThursday", Remedy: "wait"}) },
		"stuck":   forever,
		"killed":  func() int { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL); return forever() },
		"babbles": func() int { fmt.Print(strings.Repeat("x", 1<<20)); return 3 },
	})
	os.Exit(m.Run())
}

func forever() int {
	for {
		_ = syscall.Pause()
	}
}
