package agent_test

import (
	"os"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
	"github.com/bouvet-run/bouvet/agent/proc"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// outsideManager belongs to no test, for those whose goroutines may not own one.
var outsideManager *proc.Manager

func TestMain(m *testing.M) {
	testutil.Personas(map[string]func() int{
		"agent": func() int { return agent.Main(agent.Program{Version: "test"}) },
	})
	outsideManager = proc.NewManager(proc.Options{})
	os.Exit(testutil.LedgerMain(m, testutil.Scope{}))
}
