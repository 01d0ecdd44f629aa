package testutil

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// personaVariable names the program that a test binary is to be.
const personaVariable = "BOUVET_TEST_PERSONA"

// Personas makes this test binary into one of the named programs, if Reexec
// started it as that: it runs the program and exits with its status. Otherwise
// it returns. Call it in TestMain, before the tests run. That is how a test gets
// a process of our own code which it may kill at any instant.
func Personas(programs map[string]func() int) {
	name, found := os.LookupEnv(personaVariable)
	if !found {
		return
	}
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "no persona %q: give it to testutil.Personas in TestMain\n", name)
		os.Exit(2)
	}
	// Not for grandchildren.
	if err := os.Unsetenv(personaVariable); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(program())
}

// Reexec returns a command that runs this test binary as one of its personas,
// not yet started. Its arguments are os.Args[1:] there. It is killed, and has to
// have been waited for, when the test ends; stderr is the test's.
func Reexec(t testing.TB, persona string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), personaVariable+"="+persona)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
