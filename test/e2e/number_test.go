package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func itoa[T int | int64](n T) string { return fmt.Sprint(n) }

func atoi(t testing.TB, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
