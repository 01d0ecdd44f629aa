package vsock_test

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vsock"
)

// TestMuxPadding: a session on a channel that another one may have used begins with more
// than a frame of newlines, the first one of a channel with its hello; either is
// answered.
func TestMuxPadding(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{})
	for _, tc := range []struct {
		name   string
		new    func(vsock.Channel) *vsock.Mux
		padded bool
	}{
		{"used", vsock.NewMux, true},
		{"first", vsock.NewFirstMux, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host, guest := pipe(t)
			m := tc.new(host)
			defer func() { _ = m.Close() }()
			_ = guest.SetReadDeadline(time.Now().Add(10 * time.Second))
			const hello = "\nBOUVET-MUX 1 hello "
			head := make([]byte, len(hello))
			if _, err := io.ReadFull(guest, head); err != nil {
				t.Fatal(err)
			}
			if padded := bytes.Equal(head, bytes.Repeat([]byte("\n"), len(head))); padded != tc.padded {
				t.Fatalf("it begins with %q, want padding: %v", head, tc.padded)
			}
			if !tc.padded && string(head) != hello {
				t.Fatalf("it begins with %q, want %q", head, hello)
			}
			// The rest of that hello is in nobody's way.
			_ = guest.SetReadDeadline(time.Time{})
			serve(t, vsock.NewMuxListener(guest), echo)
			roundtrip(t, dial(t, m), "hello")
		})
	}
}
