package proc

import (
	"fmt"
	"os"
)

// roleVariable makes the test binary another program.
const roleVariable = "BOUVET_PROC_TEST_ROLE"

var roles = map[string]func() error{}

// play runs a role and returns its exit code.
func play(role string) int {
	f, ok := roles[role]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such role:", role)
		return 1
	}
	if err := f(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}
