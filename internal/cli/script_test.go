package cli

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/internal/wait"
	"github.com/bouvet-run/bouvet/local"
)

// Environment of the test binary as bouvet: the image store to use, and the
// program that runs gVisor where the test binary cannot.
const (
	imagesVar = "BOUVET_TEST_IMAGES"
	helperVar = "BOUVET_HELPER"
)

func TestMain(m *testing.M) {
	local.Dispatch()
	testscript.Main(tests{m}, map[string]func(){"bouvet": bouvetMain})
}

// tests runs the tests and then removes what they shared.
type tests struct{ m *testing.M }

// Run implements testscript.TestingM.
func (t tests) Run() int {
	code := t.m.Run()
	if helperDir != "" {
		_ = os.RemoveAll(helperDir)
	}
	return code
}

// bouvetMain is cmd/bouvet with the images of another state directory.
func bouvetMain() {
	w := systemWorld()
	w.backend = localBackend{images: os.Getenv(imagesVar), exe: os.Getenv(helperVar)}
	w.serveExe = os.Getenv(helperVar)
	os.Exit(run(context.Background(), w, os.Args[1:]))
}

// realEnv is the environment in which the test binary, as bouvet, runs real
// sandboxes whose state is in a directory of the test's own.
func realEnv(t *testing.T, state string) []string {
	t.Helper()
	imagetest.Default(t)
	images, err := statedir.Default()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.Resolve(); err != nil {
		t.Skipf("%v: `make build`", err)
	}
	env := []string{"BOUVET_STATE_DIR=" + state, imagesVar + "=" + images}
	if static() {
		return env
	}
	helper, err := makeHelper()
	if err != nil {
		t.Fatalf("cannot make a program that can run gVisor: %v", err)
	}
	return append(env, helperVar+"="+helper)
}

// static reports whether this program can run gVisor. One with the race detector
// is always linked dynamically.
func static() bool {
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// helperDir holds the program that makeHelper builds.
var helperDir string

// makeHelper finds a program that can run gVisor, or builds one.
var makeHelper = sync.OnceValues(func() (string, error) {
	if helper := os.Getenv(helperVar); helper != "" {
		return helper, nil
	}
	dir, err := os.MkdirTemp("", "cli-test-")
	if err != nil {
		return "", err
	}
	helperDir = dir
	helper := filepath.Join(dir, "bouvet")
	cmd := exec.Command("go", "build", "-trimpath", "-o", helper, "github.com/bouvet-run/bouvet/cmd/bouvet")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return helper, nil
})

// The scripts are what users type, with what must come back. Among it: a command's
// exit code is told without a word on standard error (exit.txtar; 2.11 no. 7).
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			state := filepath.Join(e.WorkDir, ".state")
			if err := os.Mkdir(state, 0o700); err != nil {
				return err
			}
			e.Vars = append(e.Vars, realEnv(t, state)...)
			e.Vars = append(e.Vars, "TERM=dumb")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "appears": appears},
	})
}

// appears FILE waits until there is such a file.
func appears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: appears FILE")
	}
	ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience(30*time.Second))
	defer cancel()
	if err := wait.Until(ctx, func() (bool, error) {
		_, err := os.Lstat(ts.MkAbs(args[0]))
		return err == nil, nil
	}); err != nil {
		ts.Fatalf("%s does not appear: %v", args[0], err)
	}
}

// exits CODE COMMAND... runs a command that must end with that exit code.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND ARG...")
	}
	want, err := strconv.Atoi(args[0])
	if err != nil {
		ts.Fatalf("%q is not an exit code", args[0])
	}
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}
