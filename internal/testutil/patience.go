package testutil

import (
	"os"
	"strconv"
	"time"
)

// PatienceEnv names the environment variable with the factor of Patience: for
// machines that are many times slower than others, such as emulated ones.
const PatienceEnv = "BOUVET_TEST_PATIENCE"

// Patience is how long to wait for what should take at most d, which is d times
// $BOUVET_TEST_PATIENCE, if that is 1 to 100.
func Patience(d time.Duration) time.Duration {
	if factor, err := strconv.Atoi(os.Getenv(PatienceEnv)); err == nil && factor >= 1 && factor <= 100 {
		return d * time.Duration(factor)
	}
	return d
}
