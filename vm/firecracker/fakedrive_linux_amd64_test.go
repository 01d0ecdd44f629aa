package firecracker

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// A fakeDrive is one that was attached, as the fake also saves it.
type fakeDrive struct {
	ID, Path string
	ReadOnly bool
	Size     int64
}

const sectorSize = 512

// attachDrive opens the file of a drive, as PUT /drives does. One that is told again
// takes the place of the first.
func (v *fakeVMM) attachDrive(path string, f map[string]any) error {
	d := fakeDrive{ID: fmt.Sprint(f["drive_id"]), Path: fmt.Sprint(f["path_on_host"]), ReadOnly: f["is_read_only"] == true}
	if d.ID != strings.TrimPrefix(path, "/drives/") {
		return refusef("The id from the path [%s] does not match the id from the body [%s]!", path, d.ID)
	}
	if f["is_root_device"] == true {
		return refusef("the fake has no root device: its guest's agent mounts what it finds")
	}
	var err error
	if d.Size, err = v.driveSize(&d); err != nil {
		return err
	}
	v.drives = append(slices.DeleteFunc(v.drives, func(o fakeDrive) bool { return o.ID == d.ID }), d)
	return nil
}

// driveSize is that of the file, which Firecracker could use as it is to be used.
func (v *fakeVMM) driveSize(d *fakeDrive) (int64, error) {
	flags := os.O_RDWR
	if d.ReadOnly {
		flags = os.O_RDONLY
	}
	f, err := v.open(d.Path, flags)
	if err != nil {
		return 0, refusef("Unable to create the block device: BackingFile(%v)", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	switch {
	case err != nil || !info.Mode().IsRegular():
		return 0, refusef("%s is no file, %v", d.Path, err)
	case info.Size() == 0 || info.Size()%sectorSize != 0:
		// Firecracker cuts off the rest, with a warning.
		return 0, refusef("%s has %d bytes, which are no sectors", d.Path, info.Size())
	}
	return info.Size(), nil
}

// restoreDrives attaches what was saved, where it was.
func (v *fakeVMM) restoreDrives(saved []fakeDrive) error {
	for i := range saved {
		size, err := v.driveSize(&saved[i])
		if err != nil {
			return err
		}
		if size != saved[i].Size {
			return refusef("%s had %d bytes, and has %d", saved[i].Path, saved[i].Size, size)
		}
	}
	v.drives = saved
	return nil
}

// bootDrives is what a guest makes of its drives and its command line: an image, which
// cannot be written to, and one more if it was told so.
func (v *fakeVMM) bootDrives() error {
	writable := 0
	for _, d := range v.drives {
		if !d.ReadOnly {
			writable++
		}
	}
	want := 0
	if slices.Contains(strings.Fields(v.args), diskFlag) {
		want = 1
	}
	if len(v.drives)-writable != 1 || writable != want {
		return refusef("the guest has drives %+v and was told %q", v.drives, v.args)
	}
	return nil
}

// countLifetime counts, in the last byte of a drive that can be written to, the guests
// that have run on it since it was made.
func (v *fakeVMM) countLifetime() error {
	for _, d := range v.drives {
		if d.ReadOnly {
			continue
		}
		f, err := v.open(d.Path, os.O_RDWR)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		var b [1]byte
		if _, err := f.ReadAt(b[:], d.Size-1); err != nil {
			return err
		}
		b[0]++
		if _, err := f.WriteAt(b[:], d.Size-1); err != nil {
			return err
		}
	}
	return nil
}
