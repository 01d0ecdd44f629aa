package firecracker

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"

	"github.com/bouvet-run/bouvet/vm"
)

// A Version is that of a release of Firecracker.
type Version struct{ Major, Minor, Patch int }

// Oldest is the oldest release that can be used: its API is the oldest that the
// driver is checked against.
var Oldest = Version{1, 15, 1}

// vsockSettles is the first release of 1.16 that keeps a guest's vsock working
// whatever happens to the guest.
var vsockSettles = Version{1, 16, 2}

var versionPattern = regexp.MustCompile(`(?:^|[\sv])(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:[-+\s]|$)`)

// ParseVersion finds the first version in what Firecracker or its jailer says of
// itself.
func ParseVersion(text string) (Version, error) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return Version{}, fmt.Errorf("cannot find a version in %.100q", text)
	}
	var v Version
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		*part, _ = strconv.Atoi(m[i+1]) // at most four digits
	}
	return v, nil
}

// String is v as in "1.15.1".
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }

// Compare is negative if v is older than w, positive if it is newer, and else 0.
func (v Version) Compare(w Version) int {
	return cmp.Or(v.Major-w.Major, v.Minor-w.Minor, v.Patch-w.Patch)
}

// holes are ranges of releases that let a guest out, or at the host.
var holes = []struct {
	from, to Version
	name     string
}{
	{Version{1, 13, 0}, Version{1, 14, 3}, "CVE-2026-5747"},
	{Version{1, 15, 0}, Version{1, 15, 0}, "CVE-2026-5747"},
}

// Check reports why no machine is to be made with release v, with the remedy, as an
// error that wraps vm.ErrUnsupported (threat T55).
func (v Version) Check() error {
	for _, h := range holes {
		if v.Compare(h.from) >= 0 && v.Compare(h.to) <= 0 {
			return fmt.Errorf("%w: Firecracker %v has %s; install %v or a later one", vm.ErrUnsupported, v, h.name, Oldest)
		}
	}
	switch {
	case v.Compare(Oldest) < 0:
		return fmt.Errorf("%w: Firecracker %v is too old; install %v or a later one", vm.ErrUnsupported, v, Oldest)
	case v.Major != Oldest.Major:
		return fmt.Errorf("%w: the API of Firecracker %v is not known; install a release of %d", vm.ErrUnsupported, v, Oldest.Major)
	}
	return nil
}

// pauses reports whether machines of v can be paused, saved and restored. Those of
// 1.16.0 and 1.16.1 can lose their vsock for ever (Firecracker issues 5958 and 6100).
func (v Version) pauses() bool {
	return v.Compare(Version{1, 16, 0}) < 0 || v.Compare(vsockSettles) >= 0
}

// limitsSerial reports whether the serial console of v can be given a rate limiter.
func (v Version) limitsSerial() bool { return v.Compare(Version{1, 16, 0}) >= 0 }
