package firecracker

import (
	"errors"
	"testing"

	"github.com/bouvet-run/bouvet/vm"
)

// T55: releases that are known to be bad, and those that nobody has looked at, are
// not used; those that lose their guests are not paused (T30).
func TestVersionCheck(t *testing.T) {
	for _, tt := range []struct {
		version      string
		ok, pauses   bool
		limitsSerial bool
	}{
		{"1.11.0", false, true, false},
		{"1.12.1", false, true, false},
		{"1.13.0", false, true, false},
		{"1.14.3", false, true, false},
		{"1.14.4", false, true, false},
		{"1.15.0", false, true, false},
		{"1.15.1", true, true, false},
		{"1.16.0", true, false, true},
		{"1.16.1", true, false, true},
		{"1.16.2", true, true, true},
		{"1.17.0", true, true, true},
		{"2.0.0", false, true, true},
		{"0.25.0", false, true, false},
	} {
		v, err := ParseVersion(tt.version)
		if err != nil || v.String() != tt.version {
			t.Fatalf("%s: got %v, %v", tt.version, v, err)
		}
		if err := v.Check(); (err == nil) != tt.ok || (err != nil && !errors.Is(err, vm.ErrUnsupported)) {
			t.Errorf("%s: got %v, want it to be used: %v", v, err, tt.ok)
		}
		if v.pauses() != tt.pauses || v.limitsSerial() != tt.limitsSerial {
			t.Errorf("%s: pauses %v, limits serial %v", v, v.pauses(), v.limitsSerial())
		}
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]string{
		"Firecracker v1.15.1\n\n2026-03-09T00:00:00 [anonymous-instance:main] exit_code=0\n": "1.15.1",
		"Jailer v1.16.2\n":   "1.16.2",
		"1.17.0-dev":         "1.17.0",
		"v7.0.0\n":           "7.0.0",
		"":                   "",
		"Firecracker v1.15":  "",
		"v1.15.1.2":          "",
		"v99999.1.1":         "",
		"vv1.x.3 and 1.2.3 ": "1.2.3",
	} {
		v, err := ParseVersion(text)
		if (err == nil) != (want != "") || (err == nil && v.String() != want) {
			t.Errorf("%q: got %v, %v, want %q", text, v, err, want)
		}
	}
}
