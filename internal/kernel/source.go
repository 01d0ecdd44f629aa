package kernel

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// SourcePackage is the package with the source of the kernel that Build makes.
const SourcePackage = "linux-source-6.1"

// sourceMax bounds the compressed source, in bytes.
const sourceMax = 1 << 30

// leftOut are files of the source that no configuration of ours compiles, and that
// are half of it. What describes the configuration stays (Kconfig, Makefile).
var leftOut = []string{
	"drivers/gpu/drm/*.[ch]", "drivers/media/*.[ch]", "drivers/staging/*.[ch]", "drivers/infiniband/*.[ch]", "drivers/net/wireless/*.[ch]",
	"sound/*.[ch]", "tools/testing/*", "Documentation/*.rst", "Documentation/*.yaml", "Documentation/*.txt",
	"arch/arm/*.[chS]", "arch/arm/*.dts*", "arch/arm64/*.[chS]", "arch/arm64/*.dts*", "arch/mips/*.[chS]", "arch/powerpc/*.[chS]",
}

var sourceName = regexp.MustCompile(`^/usr/src/(linux-source-[0-9.]+)\.tar\.xz$`)

// A source is the unpacked source of a kernel.
type source struct {
	dir     string    // the top of the tree
	version string    // of the package
	digest  string    // of the package's file
	date    time.Time // of the source in the package
}

// fetchSource downloads the source with apt, which verifies it, and unpacks it in
// dir.
func fetchSource(ctx context.Context, dir string, say Progress) (*source, error) {
	say("downloading "+SourcePackage, 0, 0)
	deb, err := download(ctx, dir, SourcePackage)
	if err != nil {
		return nil, err
	}
	version, err := tool(ctx, dir, "dpkg-deb", "--field", deb, "Version")
	if err != nil {
		return nil, err
	}
	s := &source{version: strings.TrimSpace(string(version))}
	if s.digest, err = fileDigest(deb); err != nil {
		return nil, err
	}
	say("unpacking "+SourcePackage, 0, 0)
	archive := filepath.Join(dir, "source.tar.xz")
	name := ""
	err = packageFiles(ctx, deb, func(r *tar.Reader) (err error) {
		name, s.date, err = extractSource(r, archive)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := os.Remove(deb); err != nil {
		return nil, err
	}
	args := []string{"--extract", "--xz", "--no-same-owner", "--file", archive, "--wildcards"}
	for _, pattern := range leftOut {
		args = append(args, "--exclude="+name+"/"+pattern)
	}
	if _, err := tool(ctx, dir, "tar", args...); err != nil {
		return nil, err
	}
	s.dir = filepath.Join(dir, name)
	if _, err := os.Stat(filepath.Join(s.dir, "Kconfig")); err != nil {
		return nil, fmt.Errorf("cannot use the kernel's source: %w", err)
	}
	return s, os.Remove(archive)
}

// extractSource writes the archive of the source that the package r has to the file
// named to.
func extractSource(r *tar.Reader, to string) (name string, date time.Time, err error) {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return "", time.Time{}, fmt.Errorf("there is no source in %s", SourcePackage)
		}
		if err != nil {
			return "", time.Time{}, err
		}
		m := sourceName.FindStringSubmatch(path.Clean("/" + h.Name))
		if m == nil || h.Typeflag != tar.TypeReg {
			continue
		}
		if h.Size > sourceMax {
			return "", time.Time{}, fmt.Errorf("%s has %d bytes, more than %d", h.Name, h.Size, int64(sourceMax))
		}
		f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return "", time.Time{}, err
		}
		_, err = io.CopyN(f, r, h.Size)
		return m[1], h.ModTime, errors.Join(err, f.Close())
	}
}
