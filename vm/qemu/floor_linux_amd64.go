package qemu

import (
	"context"
	"fmt"
	"strings"

	"github.com/bouvet-run/bouvet/vm"
)

// A release is a version of QEMU.
type release struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
}

func (r release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }

// oldest is the first QEMU that has all that the driver uses.
var oldest = release{6, 2}

// check refuses a QEMU that is too old.
func (r release) check() error {
	if r.Major > oldest.Major || (r.Major == oldest.Major && r.Minor >= oldest.Minor) {
		return nil
	}
	return fmt.Errorf("%w: QEMU %v is too old, it takes %v or later: upgrade the package %s, or name another with $PATH", vm.ErrUnsupported, r, oldest, Package)
}

// releaseOf reads what QEMU says of its version.
func releaseOf(version string) (r release, ok bool) {
	n, err := fmt.Sscanf(strings.TrimSpace(version), "%d.%d", &r.Major, &r.Minor)
	return r, err == nil && n == 2
}

// tooOld says so if the program is too old, which may be why it does not start.
func (d *Driver) tooOld(ctx context.Context) error {
	version, err := d.version(ctx)
	if err != nil {
		return nil //nolint:nilerr // then that is not known to be why
	}
	if r, ok := releaseOf(version); ok {
		return r.check()
	}
	return nil
}
