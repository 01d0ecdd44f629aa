package wire_test

import (
	"math"
	"testing"

	"github.com/bouvet-run/bouvet/wire"
)

func TestHandshakeLines(t *testing.T) {
	if got := wire.ConnectLine(wire.PortRPC); got != "CONNECT 52\n" { // A1, A4
		t.Errorf("got %q", got)
	}
	if got := wire.OKLine(wire.PortExec); got != "OK 10700\n" { // A2, C5
		t.Errorf("got %q", got)
	}
	if n := len(wire.ConnectLine(math.MaxUint32)); n > wire.MaxHandshakeLine {
		t.Errorf("a CONNECT line of %d bytes", n)
	}
}

func TestParseHandshake(t *testing.T) {
	const none = -1
	for _, tc := range []struct {
		in          string
		ok, connect int64
	}{
		{"OK 52", 52, none},                // A5
		{"OK 52\n", 52, none},              // A5
		{"OK 1073741824\n", 1 << 30, none}, // L1: what Firecracker answers
		{"OK 4294967295", 1<<32 - 1, none}, // L1
		{"OK 4294967296", none, none},
		{"OK 99999999999999999999", none, none},
		{"OK 0", 0, none},
		{"OK 052", 52, none},
		{"OK 52\r\n", 52, none},
		{"OK 52 ", 52, none},
		{" OK 52", none, none},
		{"OK", none, none},
		{"OK ", none, none},
		{"OK  52", none, none},
		{"OK\t52", none, none},
		{"OK -1", none, none},
		{"OK +52", none, none},
		{"OK 5 2", none, none},
		{"OK 0x34", none, none},
		{"OK 5_2", none, none},
		{"OK ٥", none, none},
		{"ok 52", none, none},
		{"OK52", none, none},
		{"", none, none},
		{"ERROR", none, none},
		{"CONNECT 52", none, 52}, // C5
		{"CONNECT 52\n", none, 52},
		{"  CONNECT 10700 \r\n", none, 10700}, // C5: seed 002 trims the line
		{"CONNECT 4294967295", none, math.MaxUint32},
		{"CONNECT 4294967296", none, none},
		{"CONNECT ", none, none},
		{"CONNECT", none, none},
		{"CONNECT fifty-two", none, none},
		{"CONNECT 52 now", none, none},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"}`, none, none},
	} {
		n, ok := wire.ParseOK([]byte(tc.in))
		if got := number(n, ok); got != tc.ok {
			t.Errorf("ParseOK(%q): got %d, want %d", tc.in, got, tc.ok)
		}
		n, ok = wire.ParseConnect([]byte(tc.in))
		if got := number(n, ok); got != tc.connect {
			t.Errorf("ParseConnect(%q): got %d, want %d", tc.in, got, tc.connect)
		}
	}
}

// number is n, or -1 when there is none.
func number(n uint32, ok bool) int64 {
	if !ok {
		return -1
	}
	return int64(n)
}
