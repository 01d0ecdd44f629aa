package gvisor

import (
	"strings"
	"testing"
)

func TestMachineAnswers(t *testing.T) {
	d := testDriver(t)
	c := testConfig(t)
	m := create(t, d, c)
	for _, tt := range []struct{ ask, want string }{
		{"ping", "pong"},
		{"nproc", "2"},
		{"grep MemTotal /proc/meminfo", "MemTotal:         131072 kB"},
		{"hostname", c.ID},
		{"id -u", "0"},
		{"cat /proc/1/cmdline | tr '\\0' ' '", "/.bouvet/agent --mux fd:3 --host-bound"},
	} {
		got, err := ask(testContext(t), m, tt.ask)
		if got = strings.TrimSpace(got); err != nil || got != tt.want {
			t.Errorf("%s: got %q, %v, want %q", tt.ask, got, err, tt.want)
		}
	}
}
