package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config is how programs in an image expect to be run. The zero value says
// nothing.
type Config struct {
	// Env holds the environment as "KEY=value".
	Env []string `json:"env,omitempty"`
	// Entrypoint and Cmd are what the image runs when nothing else is asked for.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// WorkDir is the directory programs start in.
	WorkDir string `json:"workdir,omitempty"`
	// User is the name or the number of the account they run as.
	User string `json:"user,omitempty"`
}

// Info describes an image under one name.
type Info struct {
	Name string `json:"name"`
	// Digest is "sha256:" and the SHA-256 of the image file in hexadecimal.
	Digest string `json:"digest"`
	// Created is when the name was given to this image.
	Created time.Time `json:"created"`
	// Source says what the image was made from, for people.
	Source string `json:"source,omitempty"`
	// Recipe is a digest of the steps that made the image, where it was built
	// rather than imported. BuildDefault compares it.
	Recipe string `json:"recipe,omitempty"`
	Config Config `json:"config"`
	// Size is the length of the image in bytes; Inodes and Names count its content.
	Size   int64 `json:"size"`
	Inodes int64 `json:"inodes"`
	Names  int64 `json:"names"`
	// Problem says why the name cannot be used. Only List sets it.
	Problem string `json:"problem,omitempty"`
	// Path is where the image file is. It is not to be opened without Acquire,
	// which keeps it from being removed.
	Path string `json:"path"`
}

const maxRefBytes = 1 << 20

func (s *Store) refPath(name string) string { return s.path("refs", name+".json") }

// openFile opens a file of the store for reading, and nothing else that may have
// its name: a FIFO would hold up whoever opens it.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func readJSON(path string, v any) error {
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	//nolint:forbidigo // our own state, bounded, and not from a peer
	if err := json.NewDecoder(io.LimitReader(f, maxRefBytes)).Decode(v); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// readRef returns what name stands for.
func (s *Store) readRef(name string) (Info, error) {
	if err := ValidName(name); err != nil {
		return Info{}, err
	}
	var info Info
	err := readJSON(s.refPath(name), &info)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Info{}, fmt.Errorf("%w: %s", ErrNotFound, name)
	case err != nil:
		return Info{}, err
	case !digestPattern.MatchString(info.Digest):
		return Info{}, fmt.Errorf("cannot read %s: it holds no digest", s.refPath(name))
	}
	info.Name, info.Path, info.Problem = name, s.blobPath(info.Digest), ""
	return info, nil
}

func (s *Store) writeRef(info Info) error {
	stored := info
	stored.Path, stored.Problem = "", ""
	data, err := json.MarshalIndent(stored, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot write name of image: %w", err)
	}
	return s.writeFile(s.refPath(info.Name), append(data, '\n'))
}

// List returns all names in order. A name whose record cannot be read is among
// them with Problem set.
func (s *Store) List(ctx context.Context) ([]Info, error) {
	entries, err := os.ReadDir(s.path("refs"))
	if err != nil {
		return nil, fmt.Errorf("cannot list images: %w", err)
	}
	var list []Info
	for _, e := range entries {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		name, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok || ValidName(name) != nil {
			continue
		}
		info, err := s.readRef(name)
		if errors.Is(err, ErrNotFound) {
			continue // removed meanwhile
		}
		if err != nil {
			info = Info{Name: name, Problem: err.Error()}
		}
		list = append(list, info)
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// Inspect returns the image that nameOrDigest names: a name, or a digest or at
// least six of its first digits, with or without "sha256:". For a digest with
// several names it returns the first of them.
func (s *Store) Inspect(ctx context.Context, nameOrDigest string) (Info, error) {
	if namePattern.MatchString(nameOrDigest) && !strings.HasPrefix(nameOrDigest, "sha256:") {
		info, err := s.readRef(nameOrDigest)
		if err == nil || !errors.Is(err, ErrNotFound) {
			return info, err
		}
	}
	prefix := digestPrefix(nameOrDigest)
	if prefix == "" {
		if err := ValidName(nameOrDigest); err != nil {
			return Info{}, err
		}
		return Info{}, fmt.Errorf("%w: %s", ErrNotFound, nameOrDigest)
	}
	list, err := s.List(ctx)
	if err != nil {
		return Info{}, err
	}
	var found *Info
	for i := range list {
		switch {
		case list[i].Problem != "" || !strings.HasPrefix(list[i].Digest, "sha256:"+prefix):
		case found == nil:
			found = &list[i]
		case found.Digest != list[i].Digest:
			return Info{}, fmt.Errorf("digest %s is not unique: it begins %s and %s", nameOrDigest, found.Digest, list[i].Digest)
		}
	}
	if found == nil {
		return Info{}, fmt.Errorf("%w: %s", ErrNotFound, nameOrDigest)
	}
	return *found, nil
}
