package kernel

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

const (
	// MetaPackage depends on the current package of Debian's cloud kernel.
	MetaPackage = "linux-image-cloud-amd64"
	modulesDir  = "modules"
	imageName   = "vmlinux"
	// outputMax bounds what is kept of a tool's output, in bytes.
	outputMax = 1 << 20
	toolGrace = 5 * time.Second
)

// FetchOptions are the options of Fetch. The zero value is useful.
type FetchOptions struct {
	// Package is the package to fetch; empty means the one that MetaPackage
	// depends on.
	Package string
	// Progress is told of every step; nil means nobody is.
	Progress Progress
}

var packagePattern = regexp.MustCompile(`^linux-image-[a-z0-9.+-]{1,100}$`)

// Fetch downloads the kernel's package with apt, which verifies it against the
// signed lists of the mirrors that the host is set up for, and puts its image and
// the modules that a guest needs into the store. It needs no privileges.
func (s *Store) Fetch(ctx context.Context, o FetchOptions) (_ Kernel, err error) {
	say := o.Progress.orNone()
	pkg := o.Package
	if pkg == "" {
		if pkg, err = current(ctx); err != nil {
			return Kernel{}, err
		}
	}
	if !packagePattern.MatchString(pkg) {
		return Kernel{}, fmt.Errorf("cannot fetch kernel: %.100q is not the name of a kernel package", pkg)
	}
	tmp, done, err := s.workDir()
	if err != nil {
		return Kernel{}, err
	}
	defer func() { err = errors.Join(err, done()) }()
	say("downloading "+pkg, 0, 0)
	deb, err := download(ctx, tmp, pkg)
	if err != nil {
		return Kernel{}, err
	}
	version, err := tool(ctx, tmp, "dpkg-deb", "--field", deb, "Version")
	if err != nil {
		return Kernel{}, err
	}
	source, err := fileDigest(deb)
	if err != nil {
		return Kernel{}, err
	}
	say("unpacking "+pkg, 0, 0)
	u := unpacked{modules: map[string][]byte{}, builtin: map[string]bool{}}
	if err := packageFiles(ctx, deb, u.readTar); err != nil {
		return Kernel{}, err
	}
	if u.image == nil {
		return Kernel{}, errors.New("cannot unpack kernel: the package has no image; it may be a signed or a debugging one's shell")
	}
	say("uncompressing the image", 0, 0)
	image, err := uncompress(ctx, u.image)
	if err != nil {
		return Kernel{}, err
	}
	m := Manifest{Release: u.release, Package: pkg, Version: strings.TrimSpace(string(version)), Source: source}
	order, err := loadOrder(Modules, u.modules, u.builtin)
	if err != nil {
		return Kernel{}, err
	}
	say("storing "+u.release, 0, 0)
	return s.addParts(m, image, order, u.config)
}

// current is the package that MetaPackage depends on.
func current(ctx context.Context) (string, error) {
	out, err := tool(ctx, "/", "apt-cache", "show", "--no-all-versions", MetaPackage)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		list, ok := strings.CutPrefix(line, "Depends:")
		if !ok {
			continue
		}
		for dep := range strings.SplitSeq(list, ",") {
			if name, _, _ := strings.Cut(strings.TrimSpace(dep), " "); packagePattern.MatchString(name) {
				return name, nil
			}
		}
	}
	return "", fmt.Errorf("cannot find the current kernel: %s depends on none; run apt-get update", MetaPackage)
}

// download has apt fetch a package into dir, and returns its file.
func download(ctx context.Context, dir, pkg string) (string, error) {
	_, err := tool(ctx, dir, "apt-get", "download", "-q",
		"-o", "APT::Get::AllowUnauthenticated=false", "-o", "Acquire::AllowInsecureRepositories=false",
		// The directory is ours alone, which apt's own user cannot write to.
		"-o", "APT::Sandbox::User=", pkg)
	if err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("cannot fetch kernel: apt-get left %d packages", len(found))
	}
	return found[0], nil
}

// tool runs a program of the distribution and returns its output.
func tool(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd, stderr := command(ctx, dir, name, args...)
	out := &capped{limit: outputMax}
	cmd.Stdout = out
	if err := cmd.Run(); err != nil {
		return nil, toolError(ctx, name, err, stderr)
	}
	return out.Bytes(), nil
}

func command(ctx context.Context, dir, name string, args ...string) (*exec.Cmd, *capped) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.WaitDelay = toolGrace
	stderr := &capped{limit: 4 << 10}
	cmd.Stderr = stderr
	return cmd, stderr
}

func toolError(ctx context.Context, name string, err error, stderr *capped) error {
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("cannot run %s: %w", name, context.Cause(ctx))
	case errors.Is(err, exec.ErrNotFound):
		return fmt.Errorf("cannot run %s: %w: it takes a Debian-like host with apt and dpkg", name, err)
	default:
		said := strings.Join(strings.Fields(stderr.String()), " ")
		return fmt.Errorf("cannot run %s: %w: %s", name, err, said)
	}
}

// A capped buffer drops what is beyond its limit.
type capped struct {
	bytes.Buffer
	limit int
}

func (c *capped) Write(p []byte) (int, error) {
	c.Buffer.Write(p[:min(len(p), max(0, c.limit-c.Len()))])
	return len(p), nil
}

// unpacked is what is used of a package.
type unpacked struct {
	release string
	image   []byte
	modules map[string][]byte // by name
	builtin map[string]bool
	config  []byte
}

// packageFiles has read read the files of the package deb, which dpkg-deb writes as
// an archive.
func packageFiles(ctx context.Context, deb string, read func(*tar.Reader) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd, stderr := command(ctx, "/", "dpkg-deb", "--fsys-tarfile", deb)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return toolError(ctx, "dpkg-deb", err, stderr)
	}
	if err := read(tar.NewReader(pipe)); err != nil {
		ended := ctx.Err() != nil
		cancel()
		_ = cmd.Wait()
		if ended {
			return toolError(ctx, "dpkg-deb", err, stderr)
		}
		return fmt.Errorf("cannot unpack kernel: %w", err)
	}
	_, _ = io.Copy(io.Discard, pipe) // what is left of it
	if err := cmd.Wait(); err != nil {
		return toolError(ctx, "dpkg-deb", err, stderr)
	}
	return nil
}

func (u *unpacked) readTar(r *tar.Reader) error {
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		name := path.Clean("/" + h.Name)
		if release, ok := strings.CutPrefix(name, "/boot/vmlinuz-"); ok {
			u.release = release
			if u.image, err = readPart(r, h, imageMax); err != nil {
				return err
			}
		} else if module, ok := moduleName(name); ok && h.Size <= moduleMax {
			if u.modules[module], err = readPart(r, h, moduleMax); err != nil {
				return err
			}
		} else if strings.HasPrefix(name, "/boot/config-") {
			if u.config, err = readPart(r, h, configMax); err != nil {
				return err
			}
		} else if path.Base(name) == builtinName {
			list, err := readPart(r, h, outputMax)
			if err != nil {
				return err
			}
			addBuiltin(u.builtin, list)
		}
	}
}

func readPart(r io.Reader, h *tar.Header, limit int64) ([]byte, error) {
	if h.Size > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", h.Name, h.Size, limit)
	}
	data := make([]byte, h.Size)
	_, err := io.ReadFull(r, data)
	return data, err
}

func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("cannot read package: %w", err)
	}
	return digestPrefix + hex.EncodeToString(sum.Sum(nil)), nil
}
