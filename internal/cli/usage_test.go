package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/vm"
)

// What was typed wrong ends with 125, says so in two lines, and makes nothing.
func TestUsageErrors(t *testing.T) {
	for _, tt := range []struct {
		args string
		want string
	}{
		{"run --nonsense", "unknown flag: --nonsense"},
		{"nonsense", `unknown command "nonsense"`},
		{"image nonsense", `unknown command "nonsense"`},
		{"run", "no command was given"},
		{"run --code 1", "cannot use --code without --lang"},
		{"run --lang cobol --code x", `cannot run "cobol" code`},
		{"run --lang python", "cannot run python code: none was given"},
		{"run --lang python /no/such/file", "no such file or directory"},
		{"run --memory lots -- true", `"lots" is not a size`},
		{"run --memory 1M -- true", "cannot use --memory 1M"},
		{"run --memory 2048G -- true", "cannot use --memory 2T"},
		{"run --cpus 0 -- true", "cannot use --cpus 0"},
		{"run --cpus many -- true", "invalid argument"},
		{"run --timeout soon -- true", `"soon" is not a time`},
		{"run --timeout=-1s -- true", "is negative"},
		{"run --driver vmware -- true", `cannot use --driver "vmware"`},
		{"run --tty -- true", "not both a terminal"},
		{"run --image Not/Valid -- true", "cannot use --image"},
		{"run -e =x -- true", "is not the name of an environment variable"},
		{"run --env-file /no/such -- true", "cannot read the environment file"},
		{"run --file nonsense -- true", "it is not HOST:GUEST"},
		{"run --file /no/such:/x -- true", "no such file or directory"},
		{"run --hostname not_valid -- true", "host name"},
		{"image import", "accepts between 1 and 2 arg"},
		{"image import - ", "no name follows from it"},
		{"image rm", "requires at least 1 arg"},
		{"image inspect nothing", "no such image"},
		{"image rm nothing", "no such image"},
		{"doctor extra", "unknown command"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			w := newTestWorld(t, newFakeBackend(t))
			if got := w.run(t, strings.Fields(tt.args)...); got != exitFailure {
				t.Errorf("exit code %d, want %d", got, exitFailure)
			}
			lines := strings.Split(strings.TrimSuffix(w.err.String(), "\n"), "\n")
			if !strings.HasPrefix(lines[0], "bouvet: ") || !strings.Contains(lines[0], tt.want) {
				t.Errorf("standard error begins with %q, want %q in it", lines[0], tt.want)
			}
			if len(lines) != 2 || !strings.HasPrefix(lines[1], "try: ") {
				t.Errorf("standard error is %q, want a second line with the remedy", lines)
			}
			if w.out.String() != "" {
				t.Errorf("standard output is %q, want nothing", w.out.String())
			}

			w = newTestWorld(t, newFakeBackend(t))
			words := strings.Fields(tt.args)
			if at := min(len(words), 2); words[0] != "run" {
				words = slices.Insert(words, at, "--json")
			} else {
				words = slices.Insert(words, 1, "--json")
			}
			if got := w.run(t, words...); got != exitFailure {
				t.Errorf("with --json: exit code %d, want %d", got, exitFailure)
			}
			var got struct{ Error jsonError }
			if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil {
				t.Fatalf("with --json: %v in %q", err, w.out.String())
			}
			if got.Error.Kind == "" || got.Error.Message == "" || got.Error.Remedy == "" {
				t.Errorf("with --json: %+v, want a kind, a message and a remedy", got.Error)
			}
		})
	}
}

// T23, T51: whoever chose the words, the message stays on its line.
func TestHostileWords(t *testing.T) {
	const hostile = "\x1b]0;owned\x07\nbouvet: all is well\u202e"
	for _, args := range [][]string{
		{hostile},
		{"run", "--" + hostile},
		{"run", "--lang", hostile, "x"},
		{"run", "--lang", "python", "/tmp/" + hostile},
		{"run", "--file", hostile + ":/x", "--", "true"},
		{"run", "--image", hostile, "--", "true"},
		{"run", "--memory", hostile, "--", "true"},
		{"image", "import", "/tmp/" + hostile},
		{"image", "rm", hostile},
		{"image", "inspect", hostile},
	} {
		w := newTestWorld(t, newFakeBackend(t))
		if got := w.run(t, args...); got != exitFailure {
			t.Errorf("%q: exit code %d, want %d", args, got, exitFailure)
		}
		text := w.err.String()
		if strings.ContainsAny(text, "\x1b\x07\u202e") || strings.Count(text, "\n") > 2 || strings.Contains(text, "\nbouvet: all") {
			t.Errorf("%q: standard error is %q, want it escaped", args, text)
		}
	}
}

func TestMistypedCommands(t *testing.T) {
	for typed, want := range map[string]string{"rum -- true": "bouvet run", "image bulid-default": "bouvet image build-default", "docter": "bouvet doctor"} {
		w := newTestWorld(t, newFakeBackend(t))
		w.run(t, strings.Fields(typed)...)
		if !strings.HasSuffix(w.err.String(), "\ntry: "+want+"\n") {
			t.Errorf("bouvet %s says %q, want it to suggest %q", typed, w.err.String(), want)
		}
	}
}

func TestErrorsKnowTheirRemedy(t *testing.T) {
	for _, known := range knownErrors {
		e := describe(fmt.Errorf("cannot do it: %w", known.err))
		if e.Kind == "" || e.Remedy != known.remedy {
			t.Errorf("describe(%v) = %+v, want a kind and remedy %q", known.err, e, known.remedy)
		}
	}
	if e := describe(&problem{kind: "k", err: vm.ErrGone, remedy: "r"}); e.Kind != "k" || e.Remedy != "r" {
		t.Errorf("a problem's own kind and remedy became %+v", e)
	}
}

func TestDriverFailureIsReported(t *testing.T) {
	w := newTestWorld(t, newFakeBackend(t))
	if got := w.run(t, "run", "--", "true"); got != exitFailure {
		t.Errorf("exit code %d, want %d", got, exitFailure)
	}
	if want := "bouvet: " + errNoDriver.Error(); !strings.HasPrefix(w.err.String(), want) {
		t.Errorf("standard error is %q, want %q", w.err.String(), want)
	}
}
