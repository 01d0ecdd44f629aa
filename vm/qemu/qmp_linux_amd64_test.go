package qemu

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"
)

// What a QEMU in the guest's hands may say ends the conversation, in its time.
func TestQMP(t *testing.T) {
	const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian"}, "capabilities": ["oob"]}}` + "\r\n"
	for _, tt := range []struct{ name, says, want, reason string }{
		{"obeys", greeting + `{"timestamp": {"seconds": 1}, "event": "RESUME"}` + "\n" + `{"return": {}, "id": 1}` + "\n" +
			`{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-panic"}}` + "\n", "", "guest-panic"},
		{"refuses", greeting + `{"error": {"class": "GenericError", "desc": "no"}, "id": 1}` + "\n", `refuses to qmp_capabilities: "no"`, ""},
		{"too old", `{"QMP": {"version": {"qemu": {"micro": 0, "minor": 1, "major": 6}}}}` + "\n", "QEMU 6.1 is too old", ""},
		{"no version", `{"QMP": {}}` + "\n", "QEMU 0.0 is too old", ""},
		{"says nothing", "", "deadline", ""},
		{"says no more", greeting, "deadline", ""},
		{"talks nonsense", greeting + "nonsense\n", "cannot read QEMU's message", ""},
		{"never ends a line", strings.Repeat("x", qmpLine+1), "buffer full", ""},
		{"answers too much", strings.Repeat(`{"return": {}, "id": 1}`+"\n", 3), "nobody asked", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			q := newQMP(ours)
			said := make(chan struct{})
			go func() {
				defer close(said)
				says := tt.says
				if rest, ok := strings.CutPrefix(says, greeting); ok {
					_, _ = fmt.Fprint(theirs, greeting)
					_, _ = theirs.Read(make([]byte, qmpLine)) // a command
					says = rest
				}
				go func() { _, _ = io.Copy(io.Discard, theirs) }()
				_, _ = fmt.Fprint(theirs, says)
			}()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if tt.want == "" {
				ctx = testContext(t)
			}
			err := q.negotiate(ctx)
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if tt.want == "" {
				<-said
				_ = theirs.Close()
			} else {
				q.hangUp()
			}
			<-q.ended
			_ = theirs.Close()
			if got := q.shutdownReason(); got != tt.reason {
				t.Errorf("reason: got %q, want %q", got, tt.reason)
			}
		})
	}
}
