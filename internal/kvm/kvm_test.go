package kvm_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/internal/testutil"
)

// Whatever this machine's KVM is like, there is an answer, in time, with a reason, and
// no process is left. BOUVET_TEST_KVM says what it has to be where that is known.
func TestCheck(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	began := time.Now()
	err := kvm.Check(t.Context())
	if took := time.Since(began); took > kvm.Time {
		t.Errorf("took %v", took)
	}
	t.Logf("%v after %v", err, time.Since(began))
	if e, ok := errors.AsType[*kvm.Error](err); err != nil && (!ok || e.Reason == "") {
		t.Errorf("got %v, want a reason", err)
	}
	switch want := os.Getenv("BOUVET_TEST_KVM"); {
	case want == "works" && err != nil:
		t.Errorf("got %v, want a KVM that works", err)
	case want == "broken" && err == nil:
		t.Error("KVM works")
	}
}

func TestCheckEndsWithItsContext(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more")
	cancel(cause)
	if err := kvm.Check(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v, want %v", err, cause)
	}
}

func TestRun(t *testing.T) {
	for _, test := range []struct {
		persona, reason, remedy string
		time                    time.Duration
		timedOut                bool
	}{
		{persona: "works"},
		{persona: "refuses", reason: "it is Thursday", remedy: "wait"},
		{persona: "killed", reason: "signal: killed", remedy: "dmesg"},
		{persona: "stuck", reason: "does not come to its end", remedy: "dmesg", time: 500 * time.Millisecond, timedOut: true},
		{persona: "babbles", reason: strings.Repeat("x", 4<<10)},
	} {
		t.Run(test.persona, func(t *testing.T) {
			testutil.Ledger(t, testutil.Scope{})
			ctx := t.Context()
			if test.time > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, test.time)
				defer cancel()
			}
			e := kvm.Run(ctx, testutil.Reexec(t, test.persona))
			switch {
			case e == nil && test.reason != "":
				t.Error("KVM works")
			case e != nil && test.reason == "":
				t.Error(e)
			case e != nil && (!strings.Contains(e.Reason, test.reason) || !strings.Contains(e.Remedy, test.remedy) || e.TimedOut != test.timedOut):
				t.Errorf("got %+v, want %+v", e, test)
			case e != nil && len(e.Reason) > 5<<10:
				t.Errorf("a reason of %d bytes", len(e.Reason))
			}
		})
	}
}

func TestRunWithoutProgram(t *testing.T) {
	cmd := testutil.Reexec(t, "works")
	cmd.Path = "/nonexistent"
	if e := kvm.Run(t.Context(), cmd); e == nil || !strings.Contains(e.Reason, "does not start") {
		t.Errorf("got %v", e)
	}
}
