package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A byteSize is a flag's value like 512M: a number with an optional unit K, M, G
// or T, in powers of 1024; "512MiB" and "512mb" mean the same. A number without
// a unit counts bytes.
type byteSize int64

var sizeUnits = []struct {
	suffix string
	shift  uint
}{{"T", 40}, {"G", 30}, {"M", 20}, {"K", 10}}

func parseSize(s string) (byteSize, error) {
	word := strings.ToUpper(strings.TrimSpace(s))
	word = strings.TrimSuffix(strings.TrimSuffix(word, "B"), "I")
	shift := uint(0)
	for _, u := range sizeUnits {
		if number, ok := strings.CutSuffix(word, u.suffix); ok {
			word, shift = number, u.shift
			break
		}
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || strings.ContainsAny(word, "XPEN_+") || math.IsInf(f, 0) {
		return 0, fmt.Errorf("%s is not a size; write it like 512M or 2G", quoted(s))
	}
	bytes := f * float64(uint64(1)<<shift)
	if bytes < 0 || bytes >= math.MaxInt64 {
		return 0, fmt.Errorf("size %s is out of range", quoted(s))
	}
	return byteSize(bytes), nil
}

// Set implements pflag.Value.
func (b *byteSize) Set(s string) error {
	v, err := parseSize(s)
	if err == nil {
		*b = v
	}
	return err
}

// Type implements pflag.Value.
func (*byteSize) Type() string { return "SIZE" }

// String implements pflag.Value.
func (b *byteSize) String() string {
	for _, u := range sizeUnits {
		if unit := int64(1) << u.shift; int64(*b) >= unit && int64(*b)%unit == 0 {
			return strconv.FormatInt(int64(*b)/unit, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// humanSize is a size as people read it: "252.1 MB".
func humanSize(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), 0
	for f >= 999.95 && unit < 5 {
		f, unit = f/1000, unit+1
	}
	return fmt.Sprintf("%.1f %cB", f, " kMGTP"[unit])
}
