//go:build !race

package bouvet_test

const raceEnabled = false
