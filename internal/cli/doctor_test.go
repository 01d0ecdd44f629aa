package cli

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// The doctor tells of every driver whether it works, why not, and what to do about it.
func TestDoctorDrivers(t *testing.T) {
	t.Setenv("BOUVET_STATE_DIR", t.TempDir())
	unusable := local.Trial{Driver: "qemu", Accel: "kvm", Err: errors.New("a guest\x1b[2J does not run"), Remedy: "look at dmesg"}
	missing := local.Trial{Driver: "qemu", Accel: "tcg", Err: kernel.ErrNone}
	slow := local.Trial{Driver: "qemu", Accel: "tcg", Took: 2 * time.Second}
	good := local.Trial{Driver: "gvisor", Taken: true, Took: 123 * time.Millisecond}
	for _, tt := range []struct {
		name   string
		trials []local.Trial
		err    error
		want   []string
		taken  string
	}{
		{
			name: "one is taken", trials: []local.Trial{unusable, good, slow}, taken: "gvisor",
			want: []string{
				"no    qemu-kvm     a guest", "                   try: look at dmesg\n",
				"ok    gvisor       works, a sandbox took 123 ms: the best one here\n",
				"ok    qemu-tcg     works, a sandbox took 2000 ms (to take it: --driver qemu)\n",
			},
		},
		{
			name: "none works", trials: []local.Trial{unusable, missing},
			want: []string{"no    qemu-kvm ", "no    qemu-tcg ", "try: bouvet kernel fetch\n", "fail  driver       no driver works here", "not ready: driver\n"},
		},
		{
			name: "they cannot be tried", err: errors.New("the disk is full"),
			want: []string{"fail  driver       cannot try the drivers: the disk is full"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newFakeBackend(t)
			b.driver, b.trials, b.tryErr = vmtest.NewFake(t, vmtest.FakeOptions{}), tt.trials, tt.err
			w := newTestWorld(t, b)
			code := w.run(t, "doctor", "--driver", "auto")
			if !strings.Contains(w.out.String(), "fail  agent") && code != 1 { // nor is there an image
				t.Errorf("exit code %d, want 1", code)
			}
			if strings.Contains(w.out.String(), "fail  agent") {
				t.Skip("there is no agent: run `make build`")
			}
			for _, want := range tt.want {
				if !strings.Contains(w.out.String(), want) {
					t.Errorf("%q is not in:\n%s", want, w.out.String())
				}
			}
			if strings.Contains(w.out.String(), "\x1b") {
				t.Errorf("the reason got to the terminal as it is: %q", w.out.String())
			}

			w = newTestWorld(t, b)
			w.run(t, "doctor", "--driver", "auto", "--json")
			var found diagnosis
			if err := json.Unmarshal([]byte(w.out.String()), &found); err != nil {
				t.Fatalf("%v in %s", err, w.out.String())
			}
			if len(found.Drivers) != len(tt.trials) {
				t.Fatalf("got %+v, want all trials", found.Drivers)
			}
			for i, d := range found.Drivers {
				trial := tt.trials[i]
				if d.Works != (trial.Err == nil) || d.Driver != trial.Driver || d.Accel != trial.Accel || d.Taken != (d.Driver == tt.taken) ||
					d.MS != trial.Took.Milliseconds() || (d.Reason == "") != d.Works {
					t.Errorf("got %+v, want %+v", d, trial)
				}
			}
		})
	}
}
